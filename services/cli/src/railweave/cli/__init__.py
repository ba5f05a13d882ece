"""The `railweave` command: what operators and users type, the local stack, the demo, the replay of traces.

It imports the contracts and the runtime alone; services are found by name and asked over NATS.
"""
