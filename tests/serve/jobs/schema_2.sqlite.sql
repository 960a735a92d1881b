CREATE TABLE adaptree_jobs (
  number INTEGER NOT NULL,
  id TEXT NOT NULL,
  store TEXT DEFAULT '' NOT NULL,
  tenant TEXT DEFAULT '' NOT NULL,
  name TEXT DEFAULT '' NOT NULL,
  state TEXT DEFAULT '' NOT NULL,
  base TEXT DEFAULT '' NOT NULL,
  settings TEXT DEFAULT '' NOT NULL,
  file TEXT DEFAULT '' NOT NULL,
  file_name TEXT DEFAULT '' NOT NULL,
  more_files TEXT DEFAULT '' NOT NULL,
  token TEXT DEFAULT '' NOT NULL,
  worker TEXT DEFAULT '' NOT NULL,
  cancel TEXT DEFAULT '' NOT NULL,
  progress TEXT DEFAULT '' NOT NULL,
  error TEXT DEFAULT '' NOT NULL,
  task TEXT DEFAULT '' NOT NULL,
  metrics TEXT DEFAULT '' NOT NULL,
  keep_data BIGINT DEFAULT '0' NOT NULL,
  attempts BIGINT DEFAULT '0' NOT NULL,
  deaths BIGINT DEFAULT '0' NOT NULL,
  version BIGINT DEFAULT '0' NOT NULL,
  events BIGINT DEFAULT '0' NOT NULL,
  rows BIGINT DEFAULT '0' NOT NULL,
  bytes BIGINT DEFAULT '0' NOT NULL,
  most_running BIGINT DEFAULT '0' NOT NULL,
  most_seconds BIGINT DEFAULT '0' NOT NULL,
  created DOUBLE,
  started DOUBLE,
  begun DOUBLE,
  finished DOUBLE,
  lease DOUBLE,
  seconds DOUBLE DEFAULT '0' NOT NULL,
  PRIMARY KEY (number),
  UNIQUE (id)
);
CREATE INDEX adaptree_jobs_by_state ON adaptree_jobs (store, state, tenant, number);
CREATE INDEX adaptree_jobs_by_tenant ON adaptree_jobs (store, tenant, number);
CREATE TABLE adaptree_jobs_events (
  job TEXT NOT NULL,
  number BIGINT NOT NULL,
  event TEXT DEFAULT '' NOT NULL,
  data TEXT DEFAULT '' NOT NULL,
  time DOUBLE NOT NULL,
  PRIMARY KEY (job, number)
);
CREATE TABLE adaptree_jobs_files (
  id TEXT NOT NULL,
  store TEXT DEFAULT '' NOT NULL,
  tenant TEXT DEFAULT '' NOT NULL,
  name TEXT DEFAULT '' NOT NULL,
  sha256 TEXT DEFAULT '' NOT NULL,
  bytes BIGINT DEFAULT '0' NOT NULL,
  created DOUBLE NOT NULL,
  expires DOUBLE,
  PRIMARY KEY (id)
);
CREATE INDEX adaptree_jobs_files_by_tenant ON adaptree_jobs_files (store, tenant);
CREATE TABLE adaptree_jobs_schema (
  schema INTEGER NOT NULL,
  PRIMARY KEY (schema)
);
INSERT INTO adaptree_jobs_schema (schema) VALUES (2);
INSERT INTO adaptree_jobs (id, store, name, state, seconds, created) VALUES ('job-1', '', 'reviews', 'done', 12.5, 1.0);
INSERT INTO adaptree_jobs (id, store, name, state, created) VALUES ('job-2', '', 'tickets', 'queued', 2.0);
INSERT INTO adaptree_jobs_events (job, number, event, data, time) VALUES ('job-1', 1, 'epoch', '{"epoch": 1}', 1.5);
INSERT INTO adaptree_jobs_files (id, name, bytes, created) VALUES ('file-1', 'reviews.csv', 42, 1.0);
