"""The interpreter of a Python context: takes cells from the daemon, runs them as IPython would, and tells what came of them.

Only the standard library is used, of Python 3.8 and later. What takes time to import is imported where it is needed, so
that a context is there soon. User code shares this process; nothing here is a boundary.
"""

import ast
import builtins
import json
import linecache
import os
import re
import select
import signal
import sys
import threading
import traceback
import types

KERNEL_FILE = "<context>"
LONGEST_EVENT = 8 * 1024 * 1024 - 64 * 1024
LONGEST_TEXT = 1024 * 1024
LONGEST_TRACEBACK = 256 * 1024
DEEPEST_JSON = 100
MOST_ELEMENTS = 1000
MOST_FRAMES = 40
MOST_ROWS = 1000
WIDTH = 79
AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
CO_COROUTINE = 0x80
FUTURE_FLAGS = 0x1FF0000


class UsageError(Exception):
    """A magic was used in a way that it cannot be."""


class StdinNotImplementedError(RuntimeError):
    """There is nobody to answer."""


UsageError.__module__ = StdinNotImplementedError.__module__ = "builtins"
