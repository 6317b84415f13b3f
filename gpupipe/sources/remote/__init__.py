"""Samples that lie in object storage or behind HTTP: names, requests, what is read ahead, what is kept on a disk.

A process that is forked from one which used a client of storage would hang in its first request: see `client`.
"""
