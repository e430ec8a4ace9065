"""What pipelines leave behind: workers' own sockets go with them, however they end, and with the daemon at the latest."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import signal
import time

import ebbtest as t
import gang_test


def test_sockets_go_with_their_workers(dir):
    inp, out = t.write_jsonl(os.path.join(dir, "in.jsonl"), 100), os.path.join(dir, "out")
    pool = gang_test.Gang(dir)
    stages = lambda: sorted(n for n in os.listdir(pool.runtime) if n.startswith("stage-"))
    try:
        killed, told = pool.worker(), pool.worker()
        job = pool.submit(t.tiny_model(layers=6), inp, out, 2)
        pool.wait_state(job, "done")
        assert len(stages()) == 2, stages()
        told.send_signal(signal.SIGTERM)
        assert told.wait(t.PATIENCE) == 0
        assert len(stages()) == 1, stages()
        killed.kill()
        killed.wait()
        assert len(stages()) == 1, stages()
        path = os.path.join(pool.runtime, stages()[0])
        os.utime(path, (time.time() - 30, time.time() - 30))  # one that is about to listen is young
        pool.process.terminate()
        pool.process.wait(t.PATIENCE)
        assert os.listdir(pool.runtime) == ["lock"], os.listdir(pool.runtime)
    finally:
        for p in pool.started.values():
            p.kill()
        pool.stop()


if __name__ == "__main__":
    t.main(globals())
