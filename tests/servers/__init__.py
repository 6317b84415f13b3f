"""Servers that the tests and benches read from: one of ours that makes faults on order, and the real ones of others.

faults:      `FaultServer`, in a thread: HTTP with ranges and ETags, and a script of faults for each object.
processes:   what starts a server of another program, waits until it answers and ends it.
buckets:     moto (S3), Azurite (Azure) and an emulator of GCS.
nginx:       files of a folder by HTTP ranges, with a latency and a rate for each connection.

The fixtures of the tests are in tests/conftest.py. Nothing here listens beyond 127.0.0.1.
"""
