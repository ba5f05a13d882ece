"""The local stack: real servers, all services and n nodes on one machine, for trying, demonstrating and measuring."""

from railweave.cli.stack.design import Design, Layout, Shape, design
from railweave.cli.stack.local import LocalStack

__all__ = ["Design", "Layout", "LocalStack", "Shape", "design"]
