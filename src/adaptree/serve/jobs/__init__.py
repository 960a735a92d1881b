"""Training jobs of a server: a durable queue, the data files that are uploaded, and the workers that train.

database.py  queue.py  job.py  files.py     what is kept, and its laws
settings.py  checking.py                    what a client may ask for, and whether its file can be trained on
worker.py  processes.py                     who trains, in processes of their own
routes.py  uploads.py  streams.py           HTTP
"""

from adaptree.serve.jobs.claims import Claim
from adaptree.serve.jobs.files import DataFile, Files
from adaptree.serve.jobs.job import Job, JobConflict, JobEvent, JobNotFound, OverQuota
from adaptree.serve.jobs.queue import Jobs

__all__ = ["Claim", "DataFile", "Files", "Job", "JobConflict", "JobEvent", "JobNotFound", "Jobs", "OverQuota"]
