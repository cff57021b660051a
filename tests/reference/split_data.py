"""Slow twin of `jobs_of_utterances`: lists of speakers, moved one at a time."""


def split_data(speakers, num_jobs):
    """Lists of utterance numbers, one a job."""
    utterances = {}
    for u, speaker in enumerate(speakers):
        utterances.setdefault(speaker, []).append(u)
    names = list(utterances)
    jobs = [[] for _ in range(num_jobs)]
    for number, name in enumerate(names):
        jobs[number * num_jobs // len(names)].append(name)

    def size(job):
        return sum(len(utterances[name]) for name in jobs[job])

    def gain(giver, taker, name):
        moved = len(utterances[name])
        before = abs(size(taker) - size(giver))
        return before - abs((size(taker) + moved) - (size(giver) - moved))

    changed = True
    while changed:
        changed = False
        for job in range(num_jobs):
            later, earlier = job + 1, job - 1
            if later < num_jobs and jobs[job] and gain(job, later, jobs[job][-1]) > 0:
                jobs[later].insert(0, jobs[job].pop())
                changed = True
            if job and jobs[job] and gain(job, earlier, jobs[job][0]) > 0:
                jobs[earlier].append(jobs[job].pop(0))
                changed = True
    return [sorted(u for name in job for u in utterances[name]) for job in jobs]
