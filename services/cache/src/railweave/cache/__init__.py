"""Dataset cache scheduling: which nodes a job runs on, what is fetched there and what makes room for it."""
