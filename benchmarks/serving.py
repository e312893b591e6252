"""How many live streams one machine bears: N people who speak at the same time, on one model.

    python benchmarks/serving.py DATA --streams 2,4,6,8 --dtype float32
    python benchmarks/serving.py DATA --streams 4 --alone --dtype bfloat16
    python benchmarks/serving.py DATA --streams 4 --clock real --side engine

Each stream is a joined recording of people (test clips), spoken in real time from a moment of its own. A stream
is served if 95 % of the words of all come within 2 s of their end. Sides: `engine`, many sessions put together
(`sottovoce.engine`); `threads`, each session by itself in a thread of its own; `processes`, the same with a
process and a model for each.

--clock simulated: the clock stands still but for the processor time that the work takes, over --cores, so that
other programs on the machine change nothing; `threads` and `processes` are one side then: streams that share
the cores evenly, at what each took alone, without the interpreter's lock or the cache between them.
--clock real: as it is; nothing else may run. --alone: no load is simulated; texts of sessions in company are
compared with those of the same sessions alone.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from human_clips import Clip, clips, joined, spread

from sottovoce.api import Model, load_model
from sottovoce.engine.feed import Feed
from sottovoce.engine.live import Batching, LiveEngine
from sottovoce.engine.pace import Pace
from sottovoce.evaluation.wer import word_errors
from sottovoce.streaming.session import Session
from sottovoce.types import SAMPLE_RATE, Event, Partial, Samples

WITHIN_S, SHARE = 2.0, 0.95
PUSH_S = 0.1
"""Audio that a client sends at a time."""
