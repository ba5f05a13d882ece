"""VF groups: which VFs each worker of a job gets on its nodes."""
