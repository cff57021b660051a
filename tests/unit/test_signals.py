"""SIGTERM while Snakemake's scheduler holds its lock."""

import threading

from snakemake.scheduling.job_scheduler import JobScheduler

from latflow.workflow.signals import handle_sigterm_in_a_thread


def test_the_handler_does_not_wait_for_the_lock_that_it_interrupts(monkeypatch):
    # put back at the end
    monkeypatch.setattr(JobScheduler, "exit_gracefully", JobScheduler.exit_gracefully)
    handle_sigterm_in_a_thread()
    scheduler = JobScheduler.__new__(JobScheduler)
    scheduler._lock = threading.Lock()
    scheduler._open_jobs = threading.Semaphore(0)
    scheduler._user_kill = None
    is_back = threading.Event()

    def interrupted():
        with scheduler._lock:
            scheduler.exit_gracefully(15, None)
            is_back.set()

    threading.Thread(target=interrupted, daemon=True).start()
    assert is_back.wait(60)
    assert scheduler._open_jobs.acquire(timeout=60)  # the scheduler wakes up
    assert scheduler._user_kill == "graceful"
