-- What the simulation reads of a queue after each step, to hold it against what it knows.

-- name: jobs
SELECT id, idempotency_key, fingerprint, state, live, wait_reason, not_before_ms, next_lane, lease_no, lease_owner,
  due_ms, attempts_made, attempts_granted, leases_lost, floor_seq, requests, artifact_id, settled_by
FROM job ORDER BY id

-- name: requests
SELECT id, submission_id, job_id, disposition, withdrawn_ms FROM request ORDER BY id

-- name: attempts
SELECT seq, uid, job_id, owner, listener, lane, idempotency_key, fingerprint, outcome, resolution, hold_until_ms,
  recall_hold_ms, ask_ms, tokens_in, tokens_out, cost, cost_is_estimate, posted, artifact_id
FROM attempt ORDER BY seq

-- name: artifacts
SELECT id, idempotency_key, fingerprint, attempt_uid, accepted_ms, retired_ms FROM artifact ORDER BY id

-- name: replies
SELECT attempt_uid, body FROM reply ORDER BY attempt_uid

-- name: owners
SELECT uuid, dead FROM owner ORDER BY uuid

-- name: lane_states
SELECT lane, closed_until_ms FROM lane_state ORDER BY lane

-- name: tally
SELECT name, n FROM tally ORDER BY name
