"""What launchers and ranks print, as torch 2.13 printed it, with paths shortened."""
# ruff: noqa: E501, W293  # lines as they are printed

TWO_RANKS = """\
[rank1]: Traceback (most recent call last):
[rank0]: Traceback (most recent call last):
[rank1]:   File "train.py", line 6, in fails
[rank0]:   File "train.py", line 17, in main
[rank1]:     try: {}['x']
[rank1]:          ~~^^^^^
[rank0]:     dist.all_reduce(t)
[rank1]: KeyError: 'x'
[rank0]:   File "/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252, in all_reduce
[rank0]:     work.wait()

[rank1]: The above exception was the direct cause of the following exception:

[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 14, in main
[rank1]:     fails()
[rank0]: RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:16548. GLHF! \U0001f3d6\ufe0f
[rank1]:   File "train.py", line 7, in fails
[rank1]:     except KeyError as e: raise ValueError("bad batch") from e
[rank1]: ValueError: bad batch
terminate called without an active exception
"""

TORCHRUN = """\
E1121 14:03:54.232000 7294 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 7299) of binary: /usr/bin/python3
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_14:03:54
  host      : localhost
  rank      : 8 (local_rank: 0)
  exitcode  : -15 (pid: 7298)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 7298
[2]:
  time      : 2026-11-21_14:03:54
  host      : localhost
  rank      : 10 (local_rank: 2)
  exitcode  : 1 (pid: 7300)
  error_file: log/attempt_0/2/error.json
  traceback : Traceback (most recent call last):
    File "/lib/python3.11/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 367, in wrapper
      return f(*args, **kwargs)
             ^^^^^^^^^^^^^^^^^^
    File "train.py", line 14, in main
      raise ValueError("bad batch")
  ValueError: bad batch
  
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_14:03:54
  host      : localhost
  rank      : 9 (local_rank: 1)
  exitcode  : -9 (pid: 7299)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 7299
============================================================
"""
