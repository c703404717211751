"""What comes back from the world: proving where it is from (`sns`), reading it (`translate`), acting on it (`ingest`).

`poll` fetches it from a queue, the web application takes it over HTTP. Stopping a campaign because of it is `breaker`'s duty.
"""
