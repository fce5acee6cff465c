import errno

from nnlo_opt.clock import ManualClock
from nnlo_opt.run.console import ROOM_S, SAY_S, WaitForSpace

FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_said_at_once_then_once_a_minute_and_at_once_when_it_is_full_again(tmp_path):
    clock, said = ManualClock(), []
    wait = WaitForSpace(tmp_path, lambda text, stream: said.append((clock.now_s, text)), clock, clock.advance)
    for _ in range(round(2.5 * SAY_S / ROOM_S)):
        wait(FULL)
    assert [at_s for at_s, _ in said] == [0.0, SAY_S, 2 * SAY_S]
    assert f"`{tmp_path}` cannot be written (No space left on device): free some space" in said[0][1]
    clock.advance(20.0)
    wait(FULL)
    assert [at_s for at_s, _ in said[3:]] == [2.5 * SAY_S + 20.0]
