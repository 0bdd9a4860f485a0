-- Every statement of the queue, by theme. One text for SQLite and PostgreSQL; `{list name}` is a list parameter.
-- A state that is written is never a literal: `lifecycle.advance` gives it, and `move`, `lease_jobs` and `insert_job` carry them.

-- ---------------------------------------------------------------------------------------------------------- moves

-- name: move
-- The fence: a job moves only from the state and under the lease number that the mover saw.
UPDATE job SET
  state = :to_state, wait_reason = :wait_reason, not_before_ms = :not_before_ms, lease_owner = NULL,
  lease_no = lease_no + :lease_bump, next_lane = coalesce(:next_lane, next_lane),
  attempts_made = attempts_made + :attempts_delta, leases_lost = leases_lost + :lost_delta,
  artifact_id = :artifact_id, reason = :reason, settled_ms = :settled_ms, settled_by = :settled_by
WHERE id = :job_id AND state = :from_state AND lease_no = :lease_no
RETURNING id

-- name: lease_jobs
UPDATE job SET state = :to_state, lease_owner = :owner, lease_no = lease_no + 1
WHERE id IN {list ids} AND state = :from_state

-- name: insert_job
INSERT INTO job (kind, route, fingerprint, idempotency_key, state, wait_reason, not_before_ms, priority, service_class,
  due_ms, next_lane, wished_lane, floor_seq, requests, artifact_id, label, origin, tags, trace_id, created_ms,
  settled_ms, settled_by)
VALUES (:kind, :route, :fingerprint, :idempotency_key, :state, :wait_reason, :not_before_ms, :priority, :service_class,
  :due_ms, :next_lane, :wished_lane, :floor_seq, :requests, :artifact_id, :label, :origin, :tags, :trace_id,
  :created_ms, :settled_ms, :settled_by)
RETURNING id

-- name: append_event
INSERT INTO event (at_ms, kind, job_id, submission_id, data) VALUES (:at_ms, :kind, :job_id, :submission_id, :data)

-- name: tally_add
INSERT INTO tally (name, n) VALUES (:name, :delta) ON CONFLICT (name) DO UPDATE SET n = tally.n + excluded.n

-- -------------------------------------------------------------------------------------------------------- enqueue

-- name: insert_submission
INSERT INTO submission (name, created_ms, source) VALUES (:name, :created_ms, :source) RETURNING id

-- name: name_submission
UPDATE submission SET name = :name WHERE id = :id

-- name: grow_submission
UPDATE submission SET requests = requests + :delta WHERE id = :id

-- name: artifacts_in_force
SELECT a.id, a.idempotency_key, a.fingerprint, a.accepted_ms, t.lane, t.model,
  (SELECT min(j.id) FROM job j WHERE j.artifact_id = a.id) AS job_id
FROM artifact a JOIN attempt t ON t.uid = a.attempt_uid
WHERE a.idempotency_key IN {list keys} AND a.retired_ms IS NULL

-- name: live_jobs
SELECT id, idempotency_key, fingerprint, state, lease_no, wait_reason, not_before_ms, priority, service_class, due_ms
FROM job WHERE idempotency_key IN {list keys} AND live = 1

-- name: open_or_undecided
-- Whatever may still bring evidence for these keys; the caller asks `is_blocking` or `may_speak` of each.
SELECT seq, idempotency_key, fingerprint, outcome, listener, hold_until_ms, recall_hold_ms, started_ms, ended_ms,
  started_boot_ms, (SELECT o.boot_id FROM owner o WHERE o.uuid = attempt.owner) AS boot_id
FROM attempt
WHERE idempotency_key IN {list keys} AND outcome IS NULL
UNION ALL
SELECT seq, idempotency_key, fingerprint, outcome, listener, hold_until_ms, recall_hold_ms, started_ms, ended_ms,
  started_boot_ms, (SELECT o.boot_id FROM owner o WHERE o.uuid = attempt.owner) AS boot_id
FROM attempt
WHERE idempotency_key IN {list keys} AND outcome = 'ambiguous' AND resolution IS NULL
ORDER BY seq

-- name: last_attempt_seq
SELECT coalesce(max(seq), 0) AS seq FROM attempt

-- name: retire_artifact
UPDATE artifact SET retired_ms = :now_ms, retired_seq = :seq WHERE id = :id AND retired_ms IS NULL

-- name: join_job
UPDATE job SET priority = :priority, service_class = :service_class, due_ms = :due_ms,
  requests = requests + :requests
WHERE id = :id

-- name: reschedule
UPDATE job SET not_before_ms = :not_before_ms WHERE id = :job_id AND state = 'waiting' AND wait_reason = 'scheduled'

-- name: count_requests
UPDATE job SET requests = requests + :requests WHERE id = :id

-- name: insert_payload
INSERT INTO payload (job_id, body) VALUES (:job_id, :body)

-- name: insert_request
INSERT INTO request (submission_id, position, custom_id, carried, job_id, disposition)
VALUES (:submission_id, :position, :custom_id, :carried, :job_id, :disposition)
RETURNING id

-- ---------------------------------------------------------------------------------------------------------- lease

-- name: owner_lives
SELECT 1 AS lives FROM owner WHERE uuid = :owner AND dead = 0

-- name: due_jobs
-- A bounded number; held jobs whose listener still reads have no time at all and are not here.
SELECT id, idempotency_key, state, lease_no, wait_reason FROM job
WHERE state = 'waiting' AND not_before_ms IS NOT NULL AND not_before_ms <= :now_ms
ORDER BY not_before_ms, id LIMIT :limit

-- name: unrouted_jobs
-- In the order of rank, so that what is urgent does not wait until a large backlog before it is routed.
SELECT j.id, j.state, j.lease_no, j.route, j.wished_lane, j.idempotency_key, j.floor_seq, p.body
FROM job j JOIN payload p ON p.job_id = j.id
WHERE j.state = 'ready' AND j.next_lane = ''
ORDER BY j.priority DESC, j.service_class DESC, j.due_ms, j.id LIMIT :limit

-- name: route_job
UPDATE job SET next_lane = :lane WHERE id = :id

-- name: ready_by_rank
-- The order is the ready index itself: priority, realtime before batch, earliest due, oldest.
SELECT id, route, wished_lane, priority, service_class, due_ms, lease_no, next_lane, attempts_made, idempotency_key,
  fingerprint, floor_seq
FROM job WHERE state = 'ready' AND next_lane = :lane
ORDER BY priority DESC, service_class DESC, due_ms, id LIMIT :limit

-- name: ready_by_age
SELECT id, route, wished_lane, priority, service_class, due_ms, lease_no, next_lane, attempts_made, idempotency_key,
  fingerprint, floor_seq
FROM job WHERE state = 'ready' AND next_lane = :lane ORDER BY id LIMIT :limit

-- name: payloads
SELECT job_id, body FROM payload WHERE job_id IN {list ids}

-- name: keys_with_history
-- One step into the index for each key, however many attempts it has.
SELECT k.value AS idempotency_key, (SELECT max(t.seq) FROM attempt t WHERE t.idempotency_key = k.value) AS seq
FROM {list keys} k

-- name: ready_lane_after
-- A loose walk over the ready index: one step for each lane that has ready work, however much.
SELECT min(next_lane) AS lane FROM job WHERE state = 'ready' AND next_lane > :lane

-- name: ready_after
-- Ready work of a lane that a drain does not have, a bounded chunk at a time.
SELECT id FROM job WHERE state = 'ready' AND next_lane = :lane AND id > :after ORDER BY id LIMIT :limit

-- name: unroute_jobs
UPDATE job SET next_lane = '' WHERE id IN {list ids}

-- name: in_flight
-- What a serial lane carries, in whichever process: leased jobs, and calls that are still listened to.
SELECT (SELECT count(*) FROM job WHERE state = 'leased' AND next_lane = :lane)
  + (SELECT count(*) FROM attempt WHERE listener IS NOT NULL AND lane = :lane) AS n

-- name: any_ready
SELECT 1 AS one FROM job WHERE state = 'ready' AND next_lane = :lane LIMIT 1

-- name: next_due
SELECT min(not_before_ms) AS at_ms FROM job WHERE state = 'waiting' AND not_before_ms IS NOT NULL

-- name: oldest_ready
SELECT created_ms FROM job WHERE state = 'ready' AND next_lane = :lane ORDER BY id LIMIT 1

-- --------------------------------------------------------------------------------------------------------- ledger

-- name: record_check
-- Everything that must hold before a call, in one look: the fence, a living owner, no artifact in force.
SELECT j.id, j.state, j.lease_no, j.idempotency_key, j.fingerprint, j.floor_seq,
  (SELECT a.id FROM artifact a WHERE a.idempotency_key = j.idempotency_key AND a.retired_ms IS NULL) AS artifact_id,
  (SELECT 1 FROM owner o WHERE o.uuid = :owner AND o.dead = 0) AS owner_lives,
  (SELECT max(t.seq) FROM attempt t WHERE t.idempotency_key = j.idempotency_key) AS last_seq,
  coalesce((SELECT t.attempt_no FROM attempt t WHERE t.job_id = j.id ORDER BY t.seq DESC LIMIT 1), 0) + 1 AS attempt_no
FROM job j WHERE j.id = :job_id AND j.state = 'leased' AND j.lease_no = :lease_no

-- name: last_worked
-- The newest call of the same work that may be billed. Asked only where its key was called before.
SELECT uid, lane, outcome FROM attempt
WHERE idempotency_key = :idempotency_key AND fingerprint = :fingerprint AND seq <= :seq
  AND outcome IN ('ok', 'unusable', 'ambiguous')
ORDER BY seq DESC LIMIT 1

-- name: insert_attempt
INSERT INTO attempt (uid, job_id, attempt_no, lease_no, owner, lane, tier, idempotency_key, fingerprint, started_ms,
  started_boot_ms, recall_hold_ms)
VALUES (:uid, :job_id, :attempt_no, :lease_no, :owner, :lane, :tier, :idempotency_key, :fingerprint, :started_ms,
  :started_boot_ms, :recall_hold_ms)
RETURNING seq

-- name: count_attempt
UPDATE job SET attempts_made = attempts_made + 1 WHERE id = :job_id

-- name: history
-- The newest ones, without those that use up no attempt: a lane that said "not now" a thousand times is no history,
-- nor is a local server that was not running.
SELECT lane, outcome, resolution, code FROM attempt
WHERE idempotency_key = :idempotency_key AND seq > :floor_seq
  AND outcome NOT IN ('ok', 'saturated', 'lane_down') AND (outcome <> 'ambiguous' OR resolution IS NOT NULL)
  AND (code IS NULL OR code <> 'not_running')
ORDER BY seq DESC LIMIT :limit

-- name: undecided
SELECT uid, lane, code, outcome, listener, hold_until_ms, recall_hold_ms, started_ms, ended_ms,
  started_boot_ms, (SELECT o.boot_id FROM owner o WHERE o.uuid = attempt.owner) AS boot_id
FROM attempt
WHERE idempotency_key = :idempotency_key AND outcome = 'ambiguous' AND resolution IS NULL AND seq > :floor_seq
ORDER BY seq LIMIT :limit

-- name: routing_facts
SELECT floor_seq, attempts_made, attempts_granted FROM job WHERE id = :job_id

-- name: attempt_by_uid
SELECT seq, uid, job_id, owner, listener, lane, idempotency_key, fingerprint, outcome, resolution, hold_until_ms,
  recall_hold_ms, (SELECT j.due_ms FROM job j WHERE j.id = attempt.job_id) AS due_ms, started_ms, ended_ms,
  started_boot_ms, (SELECT o.boot_id FROM owner o WHERE o.uuid = attempt.owner) AS boot_id
FROM attempt WHERE uid = :uid

-- name: owed
-- What one attempt costs, if that is decided and not posted yet. An attempt whose end is unknown is an estimate.
SELECT uid, lane, started_ms, cost, CASE WHEN outcome = 'ambiguous' THEN 1 ELSE 0 END AS is_estimate
FROM attempt WHERE uid = :uid AND posted = 0 AND (outcome <> 'ambiguous' OR resolution IS NOT NULL)

-- name: unposted
-- The same of all attempts. An undecided one keeps its reservation.
SELECT seq, uid, lane, started_ms, cost, CASE WHEN outcome = 'ambiguous' THEN 1 ELSE 0 END AS is_estimate
FROM attempt WHERE posted = 0 AND (outcome <> 'ambiguous' OR resolution IS NOT NULL) AND seq > :after
ORDER BY seq LIMIT :limit

-- name: mark_posted
-- Only while the ledger still says what was posted: evidence may have come in between.
UPDATE attempt SET posted = 1
WHERE uid = :uid AND posted = 0 AND (outcome <> 'ambiguous' OR resolution IS NOT NULL)
  AND cost IS NOT DISTINCT FROM :cost AND CASE WHEN outcome = 'ambiguous' THEN 1 ELSE 0 END = :is_estimate

-- name: recorded
SELECT uid FROM attempt WHERE uid IN {list keys}

-- name: end_attempt
-- By uid, by whoever has the evidence. Evidence replaces "ambiguous"; nothing replaces evidence.
UPDATE attempt SET outcome = :outcome, ended_ms = :now_ms, resolution = :resolution, listener = NULL, code = :code,
  message = :message, sent = coalesce(:sent, sent), status = coalesce(:status, status), retry_after = :retry_after,
  first_byte_ms = coalesce(:first_byte_ms, first_byte_ms), ask_ms = NULL, unasked = NULL,
  request_id = coalesce(:request_id, request_id), model = :model, tokens_in = :tokens_in, tokens_out = :tokens_out, usage = :usage,
  cost = :cost, cost_is_estimate = 0, price_version = :price_version, posted = 0
WHERE uid = :uid AND (outcome IS NULL OR outcome = 'ambiguous')
RETURNING seq

-- name: make_ambiguous
UPDATE attempt SET outcome = 'ambiguous', ended_ms = :now_ms, hold_until_ms = :hold_until_ms, listener = :listener,
  code = :code, message = :message, sent = coalesce(:sent, sent), status = :status, first_byte_ms = :first_byte_ms,
  request_id = :request_id, tokens_in = :tokens_in, tokens_out = :tokens_out, usage = :usage,
  ask_ms = CASE WHEN recall_hold_ms IS NOT NULL AND CAST(:listener AS TEXT) IS NULL THEN CAST(:now_ms AS BIGINT) END
WHERE uid = :uid AND (outcome IS NULL OR (outcome = 'ambiguous' AND resolution IS NULL))
RETURNING seq

-- name: stop_listening
-- Its lane, if it can be asked, is asked at once.
UPDATE attempt SET listener = NULL, hold_until_ms = :hold_until_ms,
  ask_ms = CASE WHEN recall_hold_ms IS NOT NULL AND resolution IS NULL THEN CAST(:now_ms AS BIGINT) END
WHERE uid = :uid AND outcome = 'ambiguous' AND listener = :listener
RETURNING seq

-- name: resolve_attempt
-- The policy or a person has spoken; the worst case is an estimate until evidence replaces it.
UPDATE attempt SET resolution = :resolution, listener = NULL, ask_ms = NULL, cost = :cost, cost_is_estimate = :is_estimate, posted = 0
WHERE uid = :uid AND outcome = 'ambiguous' AND resolution IS NULL
RETURNING seq

-- name: open_attempts_of_job
SELECT uid, owner FROM attempt WHERE job_id = :job_id AND outcome IS NULL

-- name: to_ask
-- Calls for which a lane is to be asked up to a time, longest due first, a page at a time.
SELECT seq, uid, lane, code, job_id, started_ms, ended_ms, hold_until_ms, ask_ms, started_boot_ms,
  (SELECT o.boot_id FROM owner o WHERE o.uuid = attempt.owner) AS boot_id
FROM attempt
WHERE ask_ms IS NOT NULL AND lane = :lane AND (ask_ms, seq) > (:after_ms, :after) AND ask_ms <= :until_ms
ORDER BY ask_ms, seq LIMIT :limit

-- name: next_lane_to_ask
-- One after the other by the index, which is not read for what lies between.
SELECT min(lane) AS lane FROM attempt WHERE ask_ms IS NOT NULL AND lane > :after

-- name: next_ask
-- Of those that are held for it: what is asked for beyond its hold keeps nobody waiting.
SELECT ask_ms FROM attempt WHERE ask_ms IS NOT NULL AND ask_ms <= hold_until_ms AND lane = :lane ORDER BY ask_ms, seq LIMIT 1

-- name: ask_again
-- Only who finds it due as it was asks now, and moves it on before that: two that look at once ask once.
UPDATE attempt SET ask_ms = :ask_ms WHERE uid = :uid AND ask_ms IS NOT NULL AND ask_ms <= :now_ms RETURNING uid

-- name: ask_no_more
UPDATE attempt SET recall_hold_ms = NULL, ask_ms = NULL WHERE uid = :uid

-- name: note_unasked
UPDATE attempt SET unasked = :why
WHERE uid = :uid AND outcome = 'ambiguous' AND resolution IS NULL AND unasked IS DISTINCT FROM :why

-- name: unasked
-- Of the calls that this lane is to be asked for, those for which it could not be; looked for only up to the limit.
SELECT count(*) AS n, max(unasked) AS why
FROM (SELECT unasked FROM attempt WHERE ask_ms IS NOT NULL AND lane = :lane LIMIT :limit) to_ask
WHERE unasked IS NOT NULL

-- name: undecided_after
-- A page of what nobody has decided, whatever its key; `live`: a job of the key waits for it.
SELECT t.seq, t.uid, t.lane, t.job_id, t.idempotency_key, t.listener, t.hold_until_ms, t.recall_hold_ms, t.outcome,
  (SELECT 1 FROM job j WHERE j.idempotency_key = t.idempotency_key AND j.live = 1) AS live
FROM attempt t WHERE t.outcome = 'ambiguous' AND t.resolution IS NULL AND t.idempotency_key > :after
ORDER BY t.idempotency_key LIMIT :limit

-- name: undecided_of_key
SELECT seq, uid, lane, outcome, listener, hold_until_ms, recall_hold_ms FROM attempt
WHERE idempotency_key = :idempotency_key AND outcome = 'ambiguous' AND resolution IS NULL ORDER BY seq

-- name: undecided_of_job
SELECT 1 FROM attempt
WHERE idempotency_key = (SELECT idempotency_key FROM job WHERE id = :job_id)
  AND outcome = 'ambiguous' AND resolution IS NULL LIMIT 1

-- --------------------------------------------------------------------------------------------------------- settle

-- name: insert_reply
INSERT INTO reply (attempt_uid, body) VALUES (:uid, :body) ON CONFLICT (attempt_uid) DO NOTHING

-- name: accept_check
-- First in force wins; a reply older than the key's last retirement, or already once in force, never is.
SELECT
  (SELECT a.id FROM artifact a WHERE a.idempotency_key = :key AND a.retired_ms IS NULL) AS in_force,
  (SELECT 1 FROM artifact a WHERE a.attempt_uid = :uid) AS was_accepted,
  (SELECT 1 FROM artifact a WHERE a.idempotency_key = :key AND a.retired_ms IS NOT NULL AND a.retired_seq >= :seq
   LIMIT 1) AS older_than_retirement

-- name: live_job
SELECT id, idempotency_key, fingerprint, state, lease_no, wait_reason, requests
FROM job WHERE idempotency_key = :key AND live = 1

-- name: artifact_of_key
SELECT id, idempotency_key, fingerprint, attempt_uid, accepted_ms, retired_ms FROM artifact
WHERE idempotency_key = :key AND retired_ms IS NULL

-- name: insert_artifact
INSERT INTO artifact (idempotency_key, fingerprint, attempt_uid, accepted_ms)
VALUES (:key, :fingerprint, :uid, :now_ms)
RETURNING id

-- name: mark_winner
UPDATE attempt SET artifact_id = :artifact_id WHERE uid = :uid

-- name: is_beyond
-- Whether an attempt is, or may be, a paid call beyond the one that answered: as the report counts them.
SELECT 1 AS one FROM attempt
WHERE uid = :uid AND (outcome = 'ok' AND artifact_id IS NULL OR outcome = 'ambiguous')

-- name: postpone_held
UPDATE job SET not_before_ms = :not_before_ms WHERE id = :job_id AND state = 'waiting' AND wait_reason = 'held'

-- name: job_under_lease
SELECT id, state, lease_no, idempotency_key, attempts_made FROM job
WHERE id = :job_id AND state = 'leased' AND lease_no = :lease_no

-- ---------------------------------------------------------------------------------------------- owners and reclaim

-- name: insert_owner
INSERT INTO owner (uuid, role, host, pid, boot_id, started_ms) VALUES (:uuid, :role, :host, :pid, :boot_id, :started_ms)

-- name: living_owners
SELECT uuid, role, host, pid, boot_id, started_ms FROM owner WHERE dead = 0 ORDER BY started_ms, uuid

-- name: owners_named
SELECT uuid, dead FROM owner WHERE uuid IN {list keys}

-- name: bury_owner
UPDATE owner SET dead = 1 WHERE uuid = :owner AND dead = 0 RETURNING uuid

-- name: leased_by
SELECT id, idempotency_key, state, lease_no, leases_lost FROM job
WHERE state = 'leased' AND lease_owner = :owner ORDER BY id

-- name: leased_under
SELECT id, idempotency_key, state, lease_no, leases_lost, lease_owner FROM job
WHERE id = :job_id AND state = 'leased' AND lease_no = :lease_no

-- name: open_attempts_under
SELECT uid, job_id, idempotency_key, recall_hold_ms,
  (SELECT j.due_ms FROM job j WHERE j.id = attempt.job_id) AS due_ms
FROM attempt WHERE job_id = :job_id AND lease_no = :lease_no AND outcome IS NULL

-- name: inherit_leases
UPDATE job SET lease_owner = :heir WHERE id IN {list ids} AND state = 'leased' AND lease_owner = :old

-- name: inherit_attempts
UPDATE attempt SET owner = :heir WHERE owner = :old AND outcome IS NULL

-- name: inherit_listening
UPDATE attempt SET listener = :heir WHERE listener = :old

-- name: open_attempts_by
SELECT uid, job_id, idempotency_key, recall_hold_ms,
  (SELECT j.due_ms FROM job j WHERE j.id = attempt.job_id) AS due_ms
FROM attempt WHERE owner = :owner AND outcome IS NULL ORDER BY seq

-- name: listened_by
SELECT uid, idempotency_key, hold_until_ms, recall_hold_ms FROM attempt WHERE listener = :owner ORDER BY seq

-- name: own_holds
-- How long each is, by one reading of one clock: whoever began it wrote both times at once.
SELECT uid, hold_until_ms - ended_ms AS hold_ms FROM attempt WHERE listener = :owner ORDER BY seq

-- ----------------------------------------------------------------------------------------------- what persons do

-- name: job_moves
-- What cancel, retry and decide must know of a job before they move it.
SELECT id, idempotency_key, fingerprint, state, lease_no, wait_reason, requests FROM job WHERE id = :job_id

-- name: shares_of_job
-- What each of some submissions asks of a job and has withdrawn from it; without a list, what everyone has, as one row.
-- The plus keeps both databases off the submission's own index, which would read all of it for one job.
SELECT CASE WHEN submission_id IN {list ids} THEN submission_id END AS submission_id,
  count(CASE WHEN withdrawn_ms IS NULL THEN 1 END) AS asking, count(withdrawn_ms) AS withdrawn
FROM request WHERE job_id = :job_id AND (+submission_id IN {list ids} OR :ids IS NULL)
GROUP BY 1

-- name: withdraw_requests
UPDATE request SET withdrawn_ms = :now_ms
WHERE job_id = :job_id AND (+submission_id IN {list ids} OR :ids IS NULL) AND withdrawn_ms IS NULL

-- name: take_back_requests
UPDATE request SET withdrawn_ms = NULL
WHERE job_id = :job_id AND (+submission_id IN {list ids} OR :ids IS NULL) AND withdrawn_ms IS NOT NULL

-- name: new_requests_of_job
SELECT count(*) AS n FROM request WHERE job_id = :job_id AND disposition = 'new'

-- name: join_requests
UPDATE request SET job_id = :to_job, disposition = CASE disposition WHEN 'new' THEN 'joined' ELSE disposition END
WHERE job_id = :from_job

-- name: last_pin
-- The newest call after which a job was pinned to the next lane, of those that its routing still reads.
SELECT t.seq FROM job j JOIN attempt t ON t.idempotency_key = j.idempotency_key AND t.seq > j.floor_seq
WHERE j.id = :job_id AND t.outcome = 'ambiguous' AND t.resolution = 'pin' ORDER BY t.seq DESC LIMIT 1

-- name: unpin_job
UPDATE job SET floor_seq = :floor_seq, next_lane = '' WHERE id = :job_id

-- name: renew_budget
UPDATE job SET attempts_granted = attempts_granted + :granted, leases_lost = 0, floor_seq = :floor_seq,
  wished_lane = coalesce(:wished_lane, wished_lane)
WHERE id = :job_id

-- ---------------------------------------------------------------------------------------------------------- lanes

-- name: close_lane
-- A person's word stands above the clock's; a longer closing above a shorter one.
INSERT INTO lane_state (lane, closed_until_ms, reason, closed_by, since_ms)
VALUES (:lane, :until_ms, :reason, :closed_by, :now_ms)
ON CONFLICT (lane) DO UPDATE SET
  closed_until_ms = excluded.closed_until_ms, reason = excluded.reason, closed_by = excluded.closed_by,
  since_ms = excluded.since_ms
WHERE lane_state.closed_by <> 'person' AND lane_state.closed_until_ms IS NOT NULL
  AND (excluded.closed_until_ms IS NULL OR excluded.closed_until_ms > lane_state.closed_until_ms)

-- name: open_lane
DELETE FROM lane_state WHERE lane = :lane

-- name: lane_states
SELECT lane, closed_until_ms, reason, closed_by, since_ms FROM lane_state ORDER BY lane

-- name: stops
SELECT scope, lane, since_ms, origin FROM stop ORDER BY scope, lane

-- name: begin_stop
INSERT INTO stop (scope, lane, since_ms, origin) VALUES (:scope, :lane, :since_ms, :origin)
ON CONFLICT (scope, lane) DO NOTHING
RETURNING scope

-- name: end_stop
DELETE FROM stop WHERE scope = :scope AND lane = :lane

-- ----------------------------------------------------------------------------------------------------------- feed

-- name: events_after
SELECT seq, at_ms, kind, job_id, submission_id, data FROM event WHERE seq > :after ORDER BY seq LIMIT :limit

-- name: count_events
-- Read in stretches of seq, so that a feed of any length is counted piece by piece.
SELECT count(*) AS n FROM event WHERE seq > :after AND seq <= :upto AND kind = :kind

-- name: last_event_seq
SELECT coalesce(max(seq), 0) AS seq FROM event

-- --------------------------------------------------------------------------------------------------------- counts

-- name: tally
SELECT name, n FROM tally ORDER BY name

-- name: count_states
-- The slow truth that doctor holds against the tally.
SELECT state, count(*) AS n FROM job GROUP BY state ORDER BY state

-- name: count_held
SELECT count(*) AS n FROM job WHERE state = 'waiting' AND wait_reason = 'held'

-- name: ready_of_lane
-- Counted only up to the limit: a status costs the same however long the backlog is.
SELECT count(*) AS n FROM (SELECT 1 AS one FROM job WHERE state = 'ready' AND next_lane = :lane LIMIT :limit) counted

-- name: calls_in_flight
-- Open attempts, and those that are listened to after their soft timeout: both hold a slot of their lane.
SELECT lane, count(*) AS n FROM
  (SELECT lane FROM attempt WHERE outcome IS NULL UNION ALL SELECT lane FROM attempt WHERE listener IS NOT NULL) calls
GROUP BY lane ORDER BY lane

-- name: waiting_for_person
SELECT wait_reason, count(*) AS n FROM
  (SELECT wait_reason FROM job WHERE state = 'waiting' AND wait_reason IN ('asked', 'undeliverable')
   LIMIT :limit) counted
GROUP BY wait_reason ORDER BY wait_reason

-- name: ready_after_unknown
-- Ready jobs with a call that nobody has decided, by the lane of that call; of a bounded number of such calls.
SELECT t.lane, count(DISTINCT j.id) AS n FROM
  (SELECT idempotency_key, lane FROM attempt WHERE outcome = 'ambiguous' AND resolution IS NULL
   ORDER BY idempotency_key LIMIT :limit) t
  JOIN job j ON j.idempotency_key = t.idempotency_key AND j.live = 1
WHERE j.state = 'ready' OR (j.state = 'waiting' AND j.wait_reason = 'backoff')
GROUP BY t.lane ORDER BY t.lane

-- name: unwaited_of
-- Those of some calls that nobody has decided and for whose keys no job is alive.
SELECT t.uid FROM attempt t
WHERE t.uid IN {list keys} AND t.outcome = 'ambiguous' AND t.resolution IS NULL
  AND NOT EXISTS (SELECT 1 FROM job j WHERE j.idempotency_key = t.idempotency_key AND j.live = 1)

-- name: unwaited
-- Undecided calls for whose keys no job is alive; of a bounded number of undecided ones.
SELECT count(*) AS n FROM
  (SELECT idempotency_key FROM attempt WHERE outcome = 'ambiguous' AND resolution IS NULL
   ORDER BY idempotency_key LIMIT :limit) t
WHERE NOT EXISTS (SELECT 1 FROM job j WHERE j.idempotency_key = t.idempotency_key AND j.live = 1)

-- name: meta
SELECT value FROM meta WHERE name = :name

-- name: set_meta_once
INSERT INTO meta (name, value) VALUES (:name, :value) ON CONFLICT (name) DO NOTHING

-- -------------------------------------------------------------------------------------------------------- looking

-- name: job
SELECT * FROM v_job WHERE id = :job_id

-- name: payload
SELECT body FROM payload WHERE job_id = :job_id

-- name: job_route
SELECT route, wished_lane, idempotency_key, floor_seq FROM job WHERE id = :job_id

-- name: job_in_submission
-- By its number; where none has it, by name.
SELECT 1 AS one FROM request r JOIN submission s ON s.id = r.submission_id
WHERE r.job_id = :job_id
  AND (s.id = :id OR (s.name = :name AND NOT EXISTS (SELECT 1 FROM submission n WHERE n.id = :id))) LIMIT 1

-- name: jobs_before
SELECT * FROM v_job WHERE id >= :from_id AND id < :before_id ORDER BY id DESC LIMIT :limit

-- name: jobs_by_id
SELECT * FROM v_job WHERE id IN {list ids}

-- name: last_job_id
SELECT coalesce(max(id), 0) AS id FROM job

-- name: ready_ids_before
-- The newest of one range of a partial index; `picking` merges the ranges of a state. So do those that follow.
SELECT id FROM job WHERE state = 'ready' AND next_lane = :part AND id >= :from_id AND id < :before_id
ORDER BY id DESC LIMIT :limit

-- name: waiting_ids_before
SELECT id FROM job WHERE state = 'waiting' AND wait_reason = :part AND id >= :from_id AND id < :before_id
ORDER BY id DESC LIMIT :limit

-- name: leased_ids_before
SELECT id FROM job WHERE state = 'leased' AND lease_owner = :part AND id >= :from_id AND id < :before_id
ORDER BY id DESC LIMIT :limit

-- name: unanswered_ids_before
SELECT id FROM job WHERE (state = 'failed' OR state = 'cancelled') AND state = :part
  AND id >= :from_id AND id < :before_id
ORDER BY id DESC LIMIT :limit

-- name: submissions_named
-- By its number; where none has it, all that bear the name.
SELECT id, requests FROM submission WHERE id = :id
UNION ALL
SELECT id, requests FROM submission WHERE name = :name AND NOT EXISTS (SELECT 1 FROM submission n WHERE n.id = :id)

-- name: submission_jobs_after
SELECT position, job_id FROM request WHERE submission_id = :id AND position > :after ORDER BY position LIMIT :limit

-- name: attempts_of_job
-- All attempts of its key: its own bear it too, and another job may have made some.
SELECT * FROM attempt WHERE idempotency_key = (SELECT idempotency_key FROM job WHERE id = :job_id) AND seq > :after
ORDER BY seq LIMIT :limit

-- name: attempts_after
SELECT * FROM attempt WHERE seq > :after ORDER BY seq LIMIT :limit

-- name: attempt_before_last
-- The attempt before the last so many; none where there are not more than these.
SELECT seq FROM attempt WHERE seq <= :last ORDER BY seq DESC LIMIT 1 OFFSET :rows

-- name: attempt_of_job_before_last
SELECT seq FROM attempt WHERE idempotency_key = (SELECT idempotency_key FROM job WHERE id = :job_id) AND seq <= :last
ORDER BY seq DESC LIMIT 1 OFFSET :rows

-- name: requests_for_job
SELECT id, submission_id, position, custom_id, disposition, withdrawn_ms FROM request
WHERE job_id = :job_id ORDER BY id LIMIT :limit

-- name: requests_of_job
SELECT count(*) AS n FROM request WHERE job_id = :job_id

-- name: rank_before
-- How many ready jobs of the lane go first; counted only up to the limit.
-- One range of the ready index for each column that can decide: one condition with OR reads the whole lane.
SELECT count(*) AS n FROM (
  SELECT 1 AS one FROM job WHERE state = 'ready' AND next_lane = :lane AND priority > :priority
  UNION ALL
  SELECT 1 FROM job WHERE state = 'ready' AND next_lane = :lane AND priority = :priority
    AND service_class > :service_class
  UNION ALL
  SELECT 1 FROM job WHERE state = 'ready' AND next_lane = :lane AND priority = :priority
    AND service_class = :service_class AND due_ms < :due_ms
  UNION ALL
  SELECT 1 FROM job WHERE state = 'ready' AND next_lane = :lane AND priority = :priority
    AND service_class = :service_class AND due_ms = :due_ms AND id < :id
  LIMIT :limit) ranked

-- name: submission_by_id
SELECT id, name, created_ms, source, requests FROM submission WHERE id = :id

-- name: submission_by_name
SELECT id, name, created_ms, source, requests FROM submission WHERE name = :name ORDER BY id DESC LIMIT 1

-- name: submissions
SELECT id, name, created_ms, source, requests FROM submission WHERE id < :before_id ORDER BY id DESC LIMIT :limit

-- name: submission_names
SELECT id, name FROM submission WHERE id < :before_id ORDER BY id DESC LIMIT :limit

-- name: submission_states
SELECT CASE WHEN r.withdrawn_ms IS NOT NULL THEN 'cancelled' ELSE j.state END AS state, r.disposition, count(*) AS n
FROM request r JOIN job j ON j.id = r.job_id WHERE r.submission_id = :id GROUP BY 1, 2

-- name: end_of_page
-- The position that ends a page of a submission's requests; none where this page is the last.
SELECT position FROM request WHERE submission_id = :id AND position > :after
ORDER BY position LIMIT 1 OFFSET :rows

-- name: first_pending
-- The first request that still waits for its answer; stops there, and at the end of the page.
SELECT r.position FROM request r
WHERE r.submission_id = :id AND r.position > :after AND r.position <= :until AND r.withdrawn_ms IS NULL
  AND EXISTS (SELECT 1 FROM job j WHERE j.id = r.job_id AND j.live = 1)
ORDER BY r.position LIMIT 1

-- name: request_at
SELECT id FROM request WHERE submission_id = :submission_id AND position = :position

-- name: standing
-- Which of these requests there are, and which of them still wait for their answer.
SELECT r.id, CASE WHEN r.withdrawn_ms IS NULL AND j.live = 1 THEN 1 ELSE 0 END AS pending
FROM request r JOIN job j ON j.id = r.job_id WHERE r.id IN {list ids}

-- name: any_pending_request
-- Some request that waits for its answer; each live job has one that is not withdrawn.
-- The order, and a bound that holds of every key, lead to the index of live jobs; else they are looked for among all.
SELECT id FROM request
WHERE job_id = (SELECT id FROM job WHERE live = 1 AND idempotency_key >= '' ORDER BY idempotency_key LIMIT 1)
  AND withdrawn_ms IS NULL
ORDER BY id LIMIT 1

-- name: results_after
SELECT * FROM v_result WHERE request_id > :after AND state = :state ORDER BY request_id LIMIT :limit

-- name: results_of_submission_after
SELECT * FROM v_result WHERE submission_id = :submission_id AND position > :after AND position <= :until
ORDER BY position LIMIT :limit

-- name: answered_of_submission_after
SELECT v.*, a.attempt_uid, a.accepted_ms FROM v_result v
JOIN job j ON j.id = v.job_id LEFT JOIN artifact a ON a.id = j.artifact_id
WHERE v.submission_id = :submission_id AND v.position > :after ORDER BY v.position LIMIT :limit

-- name: result_of_request
SELECT * FROM v_result WHERE request_id = :request_id

-- name: measured_answers
-- Of the newest attempts only: what answers are like is learnt without reading the ledger whole.
SELECT newest.lane, coalesce(j.route, '') AS route, j.label, count(*) AS calls, sum(newest.tokens_out) AS tokens_out
FROM (SELECT lane, job_id, outcome, tokens_out FROM attempt ORDER BY seq DESC LIMIT :limit) newest
LEFT JOIN job j ON j.id = newest.job_id
WHERE newest.outcome = 'ok' AND newest.tokens_out IS NOT NULL
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3

-- --------------------------------------------------------------------------------------------------------- report
-- Read once in a while by a person. Each reads its table whole, as sums: no rows are kept, sorted or handed over.

-- name: report_lanes
SELECT DISTINCT lane FROM attempt ORDER BY lane

-- name: report_lane
-- Ambiguous once: still, or until its reply came. Worked: may have been billed. Again: beyond the call that answers,
-- so a call of unknown end only once the same work was called for after it, whoever decided that, and that call may be
-- billed too.
SELECT count(*) AS attempts,
  min(started_ms) AS since_ms,
  sum(CASE WHEN outcome IS NULL THEN 1 ELSE 0 END) AS in_flight,
  sum(CASE WHEN outcome = 'ok' THEN 1 ELSE 0 END) AS ok,
  sum(CASE WHEN outcome = 'ambiguous' THEN 1 ELSE 0 END) AS ambiguous,
  sum(CASE WHEN outcome = 'ambiguous' OR resolution IS NOT NULL THEN 1 ELSE 0 END) AS ambiguous_once,
  sum(CASE WHEN outcome = 'saturated' THEN 1 ELSE 0 END) AS saturated,
  sum(CASE WHEN outcome IS NOT NULL AND outcome NOT IN ('saturated', 'lane_down') THEN 1 ELSE 0 END) AS counted,
  sum(worked) AS executions,
  sum(coalesce(tokens_in, 0)) AS tokens_in,
  sum(coalesce(tokens_out, 0)) AS tokens_out,
  sum(CASE WHEN tokens_in IS NULL OR tokens_out IS NULL THEN worked ELSE 0 END) AS untold,
  sum(CASE WHEN cost_is_estimate = 0 THEN coalesce(cost, 0) ELSE 0 END) AS billed,
  sum(CASE WHEN cost IS NOT NULL AND cost_is_estimate = 1 THEN 1 ELSE 0 END) AS estimates,
  sum(CASE WHEN cost_is_estimate = 1 THEN coalesce(cost, 0) ELSE 0 END) AS estimated,
  sum(CASE WHEN outcome = 'ambiguous' AND resolution IS NULL THEN 1 ELSE 0 END) AS undecided,
  sum(CASE WHEN cost IS NULL AND (outcome <> 'ambiguous' OR resolution IS NOT NULL)
    AND (worked = 1 OR coalesce(tokens_in, 0) + coalesce(tokens_out, 0) > 0)
    THEN 1 ELSE 0 END) AS unpriced,
  sum(CASE WHEN outcome = 'ok' AND resolution IS NOT NULL THEN 1 ELSE 0 END) AS late,
  sum(CASE WHEN outcome = 'ok' AND hold_until_ms IS NOT NULL AND ended_ms > hold_until_ms THEN 1 ELSE 0 END)
    AS late_after_hold,
  sum(CASE WHEN outcome = 'ok' AND artifact_id IS NULL THEN 1 ELSE 0 END) AS lost,
  sum(CASE WHEN cost > 0 THEN again ELSE 0 END) AS again,
  sum(again * coalesce(cost, 0)) AS again_cost,
  sum(CASE WHEN cost IS NULL THEN again ELSE 0 END) AS again_unpriced
FROM (
  SELECT attempt.*,
    CASE WHEN outcome IN ('ok', 'unusable', 'ambiguous') THEN 1 ELSE 0 END AS worked,
    CASE WHEN outcome = 'ok' AND artifact_id IS NULL OR outcome = 'ambiguous' AND EXISTS (
        SELECT 1 FROM attempt later
        WHERE later.idempotency_key = attempt.idempotency_key AND later.seq > attempt.seq
          AND later.fingerprint = attempt.fingerprint
          AND (later.outcome IS NULL OR later.outcome IN ('ok', 'unusable', 'ambiguous')))
      THEN 1 ELSE 0 END AS again
  FROM attempt WHERE lane = :lane
) named

-- name: report_durations
-- Nearest rank among the newest good answers of a lane, so that no more than so many are sorted.
SELECT max(CASE WHEN place = (n + 1) / 2 THEN ms END) AS p50_ms,
  max(CASE WHEN place = (n * 95 + 99) / 100 THEN ms END) AS p95_ms
FROM (
  SELECT ms, row_number() OVER (ORDER BY ms) AS place, count(*) OVER () AS n FROM (
    SELECT ended_ms - started_ms AS ms FROM attempt WHERE lane = :lane AND outcome = 'ok' ORDER BY seq DESC LIMIT :limit
  ) newest
) ranked

-- name: report_artifacts
SELECT count(*) AS accepted, sum(CASE WHEN retired_ms IS NULL THEN 1 ELSE 0 END) AS in_force FROM artifact

-- name: report_duplicates
-- None, says the index one_in_force; asked all the same, since it is the promise.
SELECT count(*) AS n FROM (
  SELECT idempotency_key FROM artifact WHERE retired_ms IS NULL GROUP BY idempotency_key HAVING count(*) > 1) twice

-- name: report_crossings
-- Each step of a job from one lane to another, however often it goes to and fro.
SELECT coalesce(sum(CASE WHEN lane <> lane_before THEN 1 ELSE 0 END), 0) AS crossings,
  count(DISTINCT CASE WHEN lane <> lane_before THEN job_id END) AS crossed_jobs
FROM (SELECT job_id, lane, lag(lane) OVER (PARTITION BY job_id ORDER BY seq) AS lane_before FROM attempt) walked

-- name: report_saved
-- Requests that were answered without a call of their own, and what the call that answered them cost.
SELECT count(*) AS requests, coalesce(sum(t.cost), 0) AS cost,
  coalesce(sum(CASE WHEN t.cost IS NULL AND t.lane NOT IN {list keys} THEN 1 ELSE 0 END), 0) AS unpriced
FROM request r
JOIN job j ON j.id = r.job_id JOIN artifact a ON a.id = j.artifact_id JOIN attempt t ON t.uid = a.attempt_uid
WHERE r.disposition = :disposition AND r.withdrawn_ms IS NULL

-- name: report_rollup
-- The first query of Stop Lane Thrash. As it was printed it sums booleans, which only SQLite does (tests run it beside this).
SELECT count(*) AS jobs,
  round(sum(tokens) * 1.0 / nullif(sum(artifacts), 0), 1) AS tokens_per_artifact,
  round(sum(CASE WHEN free_attempts > 0 AND paid_attempts > 0 THEN 1 ELSE 0 END) * 1.0
    / nullif(count(*), 0), 3) AS cross_lane_per_job
FROM job_rollup

-- name: report_rollup_duplicates
-- The second query of Stop Lane Thrash.
SELECT idem_key, count(DISTINCT artifact_id) AS n FROM job_attempt WHERE artifact_id IS NOT NULL
GROUP BY idem_key HAVING count(DISTINCT artifact_id) > 1 ORDER BY idem_key LIMIT :limit
