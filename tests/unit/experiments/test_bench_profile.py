"""What the bench makes of py-spy's looks at a process."""

from __future__ import annotations

import profile_run

RAW = (
    "thread (3754): MainThread;run (server.py);poll (hub.py) 30\n"
    "thread (3754): MainThread;run (server.py);apply (shard.py) 60\n"
    "thread (3754): MainThread;main (x.py);apply (shard.py) 6\n"
    'process 12:"python";thread (3760): saver;run (checkpoint_writer.py) 4\n'
)


def test_looks_count_for_the_innermost_function_of_a_thread() -> None:
    found = profile_run.stacks(RAW)
    assert [stack.count for stack in found] == [30, 60, 6, 4]
    assert profile_run.own(found) == {
        ("MainThread", "poll (hub.py)"): 30,
        ("MainThread", "apply (shard.py)"): 66,
        ("saver", "run (checkpoint_writer.py)"): 4,
    }


def test_a_nodes_table_shares_out_the_cpu_of_its_role() -> None:
    text = profile_run.of_node("S0", profile_run.stacks(RAW), 2.0)
    assert "All processes of this role use 2.00 us of CPU per sample; 100 stack samples." in text
    assert "| MainThread | `apply (shard.py)` | 66.0% | 1.32 |" in text
    assert "| | the rest | 0.0% | 0.00 |" in text
