"""What every service stands on: the JetStream bus, views, leases, settings, logs, metrics, health."""
