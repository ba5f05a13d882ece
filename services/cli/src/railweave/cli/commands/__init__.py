"""The commands, a module for each thing they are about."""
