-- The queue's tables. Everything that must change together is in this one file.
-- Invariants stand here rather than in code: one live job a key, one open attempt a key, one artifact in force a key.

CREATE TABLE meta (
  name  TEXT PRIMARY KEY,
  value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE tally (
  name TEXT PRIMARY KEY,
  n    INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE owner (
  uuid       TEXT PRIMARY KEY,
  role       TEXT NOT NULL CHECK (role IN ('drainer', 'worker')),
  host       TEXT NOT NULL,
  pid        INTEGER NOT NULL,
  boot_id    TEXT NOT NULL,
  started_ms INTEGER NOT NULL,
  dead       INTEGER NOT NULL DEFAULT 0 CHECK (dead IN (0, 1))
) WITHOUT ROWID;
CREATE INDEX owner_living ON owner (started_ms, uuid) WHERE dead = 0;

CREATE TABLE submission (
  id         INTEGER PRIMARY KEY AUTOINCREMENT,
  name       TEXT NOT NULL,
  created_ms INTEGER NOT NULL,
  source     TEXT NOT NULL,
  requests   INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX submission_name ON submission (name, id);

CREATE TABLE job (
  id               INTEGER PRIMARY KEY AUTOINCREMENT,
  kind             TEXT NOT NULL CHECK (kind IN ('prompt', 'command')),
  route            TEXT NOT NULL,                 -- intent or command type: what routing goes by
  fingerprint      TEXT NOT NULL,
  idempotency_key  TEXT NOT NULL,
  state            TEXT NOT NULL
    CHECK (state IN ('waiting', 'ready', 'leased', 'offloaded', 'done', 'failed', 'cancelled')),
  live             INTEGER GENERATED ALWAYS AS
    (CASE WHEN state IN ('waiting', 'ready', 'leased', 'offloaded') THEN 1 ELSE 0 END) STORED,
  wait_reason      TEXT CHECK (wait_reason IN ('scheduled', 'backoff', 'parked', 'held', 'asked', 'undeliverable')),
  not_before_ms    INTEGER,                       -- NULL: only a person or an event can wake it
  priority         INTEGER NOT NULL,
  service_class    TEXT NOT NULL CHECK (service_class IN ('realtime', 'batch')),   -- ranked as text: realtime is larger
  due_ms           INTEGER NOT NULL,              -- far future if none, so that both stores sort alike
  next_lane        TEXT NOT NULL,                 -- '' = to be routed: new, or its key's history has changed
  wished_lane      TEXT NOT NULL,                 -- the lane that the caller or a person asked for; '' = none
  lease_no         INTEGER NOT NULL DEFAULT 0,
  lease_owner      TEXT,
  attempts_made    INTEGER NOT NULL DEFAULT 0,    -- counted attempts, for life
  attempts_granted INTEGER NOT NULL DEFAULT 0,    -- what persons have granted beyond the policy's cap
  leases_lost      INTEGER NOT NULL DEFAULT 0,
  floor_seq        INTEGER NOT NULL DEFAULT 0,    -- attempts of the key up to here do not count for routing
  requests         INTEGER NOT NULL DEFAULT 0,    -- requests not withdrawn
  artifact_id      INTEGER REFERENCES artifact (id),
  reason           TEXT,
  label            TEXT,
  origin           TEXT NOT NULL,
  tags             TEXT NOT NULL,                 -- JSON list
  trace_id         TEXT,
  created_ms       INTEGER NOT NULL,
  settled_ms       INTEGER,
  settled_by       TEXT,
  CHECK ((state = 'leased') = (lease_owner IS NOT NULL)),
  CHECK ((state = 'waiting') = (wait_reason IS NOT NULL)),
  CHECK (state = 'waiting' OR not_before_ms IS NULL),
  CHECK (wait_reason IS NULL OR wait_reason NOT IN ('scheduled', 'backoff', 'parked') OR not_before_ms IS NOT NULL),
  CHECK ((state = 'done') = (artifact_id IS NOT NULL)),
  CHECK ((state IN ('done', 'failed', 'cancelled')) = (settled_ms IS NOT NULL)),
  CHECK (state <> 'failed' OR reason IS NOT NULL),
  CHECK (attempts_made >= 0 AND leases_lost >= 0 AND requests >= 0)
);
CREATE UNIQUE INDEX one_live_job ON job (idempotency_key) WHERE live = 1;
CREATE INDEX job_ready ON job (next_lane, priority DESC, service_class DESC, due_ms, id) WHERE state = 'ready';
CREATE INDEX job_ready_by_age ON job (next_lane, id) WHERE state = 'ready';
CREATE INDEX job_due ON job (not_before_ms, id) WHERE state = 'waiting' AND not_before_ms IS NOT NULL;
CREATE INDEX job_waiting ON job (wait_reason, id) WHERE state = 'waiting';
CREATE INDEX job_unanswered ON job (state, id) WHERE state = 'failed' OR state = 'cancelled';
CREATE INDEX job_leased ON job (lease_owner, id) WHERE state = 'leased';
CREATE INDEX job_artifact ON job (artifact_id) WHERE artifact_id IS NOT NULL;

CREATE TABLE payload (
  job_id INTEGER PRIMARY KEY REFERENCES job (id),
  body   TEXT NOT NULL
);

CREATE TABLE request (
  id            INTEGER PRIMARY KEY AUTOINCREMENT,
  submission_id INTEGER NOT NULL REFERENCES submission (id),
  position      INTEGER NOT NULL,
  custom_id     TEXT,
  carried       TEXT,
  job_id        INTEGER NOT NULL REFERENCES job (id),
  disposition   TEXT NOT NULL CHECK (disposition IN ('new', 'joined', 'reused')),
  withdrawn_ms  INTEGER
);
CREATE INDEX request_job ON request (job_id, id);
CREATE UNIQUE INDEX request_position ON request (submission_id, position);

CREATE TABLE attempt (
  seq              INTEGER PRIMARY KEY AUTOINCREMENT,
  uid              TEXT NOT NULL UNIQUE,
  job_id           INTEGER NOT NULL,
  attempt_no       INTEGER NOT NULL,
  lease_no         INTEGER NOT NULL,
  owner            TEXT NOT NULL,
  listener         TEXT,                          -- the owner that still reads the socket
  lane             TEXT NOT NULL,
  tier             TEXT NOT NULL,
  idempotency_key  TEXT NOT NULL,
  fingerprint      TEXT NOT NULL,
  started_ms       INTEGER NOT NULL,
  started_boot_ms  INTEGER,                       -- the same on a clock that nobody sets, of its owner's boot
  ended_ms         INTEGER,
  outcome          TEXT CHECK (outcome IN
    ('ok', 'retryable', 'saturated', 'lane_down', 'ambiguous', 'unfit', 'permanent', 'unusable')),
  resolution       TEXT CHECK (resolution IN ('pin', 'same', 'ask', 'fail', 'late', 'recalled', 'absent', 'nobody')),
  code             TEXT,
  message          TEXT,
  sent             TEXT CHECK (sent IN ('no', 'headers', 'yes')),
  status           INTEGER,
  retry_after      TEXT,
  first_byte_ms    INTEGER,
  request_id       TEXT,
  model            TEXT,
  hold_until_ms    INTEGER,
  recall_hold_ms   INTEGER,                       -- how long its key is held for its lane to be asked; NULL: it cannot be
  ask_ms           INTEGER,                       -- when its lane is asked next; NULL: it is not
  unasked          TEXT,                          -- why its lane could not be asked when that was last tried
  tokens_in        INTEGER,
  tokens_out       INTEGER,
  usage            TEXT,                          -- raw JSON
  cost             INTEGER,                       -- micro-dollars; NULL: unknown
  cost_is_estimate INTEGER NOT NULL DEFAULT 0 CHECK (cost_is_estimate IN (0, 1)),
  price_version    TEXT,
  artifact_id      INTEGER REFERENCES artifact (id),
  posted           INTEGER NOT NULL DEFAULT 0 CHECK (posted IN (0, 1)),
  CHECK ((outcome IS NULL) = (ended_ms IS NULL)),
  CHECK (listener IS NULL OR outcome = 'ambiguous'),
  CHECK (ask_ms IS NULL OR (outcome = 'ambiguous' AND resolution IS NULL AND recall_hold_ms IS NOT NULL)),
  CHECK (artifact_id IS NULL OR outcome = 'ok')
);
CREATE UNIQUE INDEX one_open_attempt ON attempt (idempotency_key) WHERE outcome IS NULL;
CREATE INDEX attempt_key ON attempt (idempotency_key, seq);
CREATE INDEX attempt_job ON attempt (job_id, seq);
CREATE INDEX attempt_open_owner ON attempt (owner) WHERE outcome IS NULL;
CREATE INDEX attempt_listener ON attempt (listener) WHERE listener IS NOT NULL;
CREATE INDEX attempt_to_ask ON attempt (lane, ask_ms, seq) WHERE ask_ms IS NOT NULL;
CREATE INDEX attempt_undecided ON attempt (idempotency_key) WHERE outcome = 'ambiguous' AND resolution IS NULL;
CREATE INDEX attempt_unposted ON attempt (seq) WHERE posted = 0 AND (outcome <> 'ambiguous' OR resolution IS NOT NULL);
CREATE INDEX attempt_artifact ON attempt (artifact_id) WHERE artifact_id IS NOT NULL;

CREATE TABLE reply (
  attempt_uid TEXT PRIMARY KEY REFERENCES attempt (uid),
  body        TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE artifact (
  id              INTEGER PRIMARY KEY AUTOINCREMENT,
  idempotency_key TEXT NOT NULL,
  fingerprint     TEXT NOT NULL,
  attempt_uid     TEXT NOT NULL UNIQUE REFERENCES attempt (uid),   -- a replayed reply never comes into force again
  accepted_ms     INTEGER NOT NULL,
  retired_ms      INTEGER,
  retired_seq     INTEGER,                        -- attempts up to here are older than the retirement
  CHECK ((retired_ms IS NULL) = (retired_seq IS NULL))
);
CREATE UNIQUE INDEX one_in_force ON artifact (idempotency_key) WHERE retired_ms IS NULL;
CREATE INDEX artifact_retired ON artifact (idempotency_key, retired_seq) WHERE retired_ms IS NOT NULL;

CREATE TABLE lane_state (
  lane            TEXT PRIMARY KEY,
  closed_until_ms INTEGER,                        -- NULL: until a person opens it
  reason          TEXT NOT NULL,
  closed_by       TEXT NOT NULL CHECK (closed_by IN ('saturated', 'down', 'person')),
  since_ms        INTEGER NOT NULL
) WITHOUT ROWID;

-- What a person has stopped, until a person resumes it: lease and record read it in their own transaction.
CREATE TABLE stop (
  scope    TEXT NOT NULL CHECK (scope IN ('all', 'paid', 'lane')),
  lane     TEXT NOT NULL,                         -- '' unless the scope is one lane
  since_ms INTEGER NOT NULL,
  origin   TEXT NOT NULL,
  PRIMARY KEY (scope, lane),
  CHECK ((scope = 'lane') = (lane <> ''))
) WITHOUT ROWID;

CREATE TABLE event (
  seq           INTEGER PRIMARY KEY AUTOINCREMENT,
  at_ms         INTEGER NOT NULL,
  kind          TEXT NOT NULL,
  job_id        INTEGER,
  submission_id INTEGER,
  data          TEXT NOT NULL                     -- JSON
);

-- The third seed's columns over our ledger: its lane is our tier, its four words stand for our eight outcomes,
-- and a loser shows its key's artifact in force, so that its published queries run as printed.
CREATE VIEW job_attempt AS
SELECT t.job_id,
       t.idempotency_key AS idem_key,
       t.attempt_no,
       t.tier AS lane,
       t.started_ms AS started_at,
       t.ended_ms AS ended_at,
       CASE t.outcome
         WHEN 'ok' THEN 'ok'
         WHEN 'ambiguous' THEN 'ambiguous'
         WHEN 'retryable' THEN 'retryable' WHEN 'saturated' THEN 'retryable' WHEN 'lane_down' THEN 'retryable'
         WHEN 'permanent' THEN 'permanent' WHEN 'unfit' THEN 'permanent' WHEN 'unusable' THEN 'permanent'
       END AS outcome,
       coalesce(t.tokens_in, 0) AS tokens_in,
       coalesce(t.tokens_out, 0) AS tokens_out,
       CASE WHEN t.outcome = 'ok' THEN
         (SELECT a.id FROM artifact a WHERE a.idempotency_key = t.idempotency_key AND a.retired_ms IS NULL)
       END AS artifact_id
FROM attempt t;

CREATE VIEW job_rollup AS
SELECT job_id,
       max(idem_key) AS idem_key,
       sum(CASE WHEN lane = 'free' THEN 1 ELSE 0 END) AS free_attempts,
       sum(CASE WHEN lane = 'paid' THEN 1 ELSE 0 END) AS paid_attempts,
       sum(tokens_in + tokens_out) AS tokens,
       count(DISTINCT artifact_id) AS artifacts
FROM job_attempt
GROUP BY job_id;

-- Public, read-only views: a job with its money, a request with its answer.
CREATE VIEW v_job AS
SELECT j.*,
  (SELECT sum(t.cost) FROM attempt t WHERE t.job_id = j.id) AS cost,
  (SELECT max(t.cost_is_estimate) FROM attempt t WHERE t.job_id = j.id) AS cost_is_estimate,
  (SELECT count(*) FROM attempt t WHERE t.job_id = j.id AND t.cost IS NULL
     AND (t.outcome IS NULL OR t.outcome IN ('ok', 'unusable', 'ambiguous'))) AS unpriced
FROM job j;

CREATE VIEW v_result AS
SELECT r.id AS request_id, r.submission_id, r.job_id, r.custom_id, r.position, r.carried, r.disposition,
  r.withdrawn_ms, j.state, j.reason, j.settled_ms, j.cost, j.cost_is_estimate, j.unpriced, b.body, t.lane, t.model,
  t.tokens_in, t.tokens_out, t.job_id AS answered_by_job
FROM request r
JOIN v_job j ON j.id = r.job_id
LEFT JOIN artifact a ON a.id = j.artifact_id
LEFT JOIN attempt t ON t.uid = a.attempt_uid
LEFT JOIN reply b ON b.attempt_uid = a.attempt_uid;
