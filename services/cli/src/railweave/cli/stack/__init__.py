"""The local stack: real servers, all services and n nodes on one machine, for trying, demonstrating and measuring.

Nothing is imported here: `local` brings in every server and service, which most commands have no use for.
"""
