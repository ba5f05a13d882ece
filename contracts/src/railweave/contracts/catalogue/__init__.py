"""What is published about the contracts: subjects, streams, examples, schemas, AsyncAPI, the reference page.

Nothing here is needed at run time; `python -m railweave.contracts.generate` writes it into the tree.
"""
