"""What the tests of every part share: real servers that clean up after themselves."""
