"""Gives every test of the tree the real servers of `railweave_testing`."""

pytest_plugins = ["railweave_testing.plugin"]
