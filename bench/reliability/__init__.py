"""The reliability scoreboard: fault cases that this library and others go through, each many times.

case.py        what a case and a row are
rows/          the cases
contenders/    the libraries, one file each
data.py        the samples
sandbox.py     runs a case in a process of its own: passed, failed, hang or none
warm.py        that process's parent, which has imported the libraries and forks
traces.py      what a process has open and what it leaves behind
victim.py      a process for cases that kill or interrupt it
run.py         all cases, many seeds: the table
"""
