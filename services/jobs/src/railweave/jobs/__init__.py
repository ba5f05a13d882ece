"""The life of a job: asks for proposals, commits them, follows reports, releases, answers why.

The decisions (ledger, rounds, lifecycle, recovery, pending) are pure: events in, effects out. `service.py` stores and
publishes.
"""
