"""`railweave demo`: the main job from nothing, told step by step, with every claim checked."""

from railweave.cli.demo.script import run_demo

__all__ = ["run_demo"]
