-- The statements of the spend book, by name.

-- name: reserve
-- Every attempt reserves, if only NULL. One statement, so that the check of a cap can stand in it.
INSERT INTO reservation (uid, queue, owner, lane, at_ms, worst)
SELECT :uid, :queue, :owner, :lane, :now_ms, :worst
ON CONFLICT (uid) DO NOTHING
RETURNING uid

-- name: release
DELETE FROM reservation WHERE uid = :uid AND queue = :queue
RETURNING lane, worst

-- name: add_reserved
INSERT INTO reserved (lane, calls, unknown, worst) VALUES (:lane, 1, :unknown, :worst)
ON CONFLICT (lane) DO UPDATE SET
  calls = reserved.calls + excluded.calls, unknown = reserved.unknown + excluded.unknown,
  worst = reserved.worst + excluded.worst

-- name: take_reserved
UPDATE reserved SET calls = calls - 1, unknown = unknown - :unknown, worst = worst - :worst WHERE lane = :lane

-- name: charge
SELECT uid, lane, at_ms, cost, is_estimate FROM charge WHERE uid = :uid

-- name: insert_charge
INSERT INTO charge (uid, queue, lane, at_ms, cost, is_estimate)
VALUES (:uid, :queue, :lane, :at_ms, :cost, :is_estimate)
ON CONFLICT (uid) DO NOTHING
RETURNING uid

-- name: replace_charge
-- An actual replaces an estimate, nothing replaces an actual.
UPDATE charge SET cost = :cost, is_estimate = :is_estimate WHERE uid = :uid AND is_estimate = 1
RETURNING uid

-- name: add_spent
INSERT INTO spent (quarter_ms, lane, charges, unknown, actual, estimated)
VALUES (:quarter_ms, :lane, :charges, :unknown, :actual, :estimated)
ON CONFLICT (quarter_ms, lane) DO UPDATE SET
  charges = spent.charges + excluded.charges, unknown = spent.unknown + excluded.unknown,
  actual = spent.actual + excluded.actual, estimated = spent.estimated + excluded.estimated

-- name: replace_spent
-- An estimate by what was charged in its place: the charge stays one.
UPDATE spent SET unknown = unknown + :unknown, actual = actual + :actual, estimated = estimated + :estimated
WHERE quarter_ms = :quarter_ms AND lane = :lane

-- name: reservations
-- Of one queue: whether another's owners live is not known here.
SELECT uid, owner FROM reservation WHERE queue = :queue AND uid > :after ORDER BY uid LIMIT :limit

-- name: reserved_by_queue
-- Reads every reservation: for who looks after faults. The queue with the oldest first.
SELECT queue, count(*) AS calls, count(*) - count(worst) AS unknown, coalesce(sum(worst), 0) AS worst,
  min(at_ms) AS since_ms
FROM reservation GROUP BY queue ORDER BY since_ms, queue LIMIT :limit

-- name: spent_since
SELECT lane, sum(charges) AS charges, sum(unknown) AS unknown, sum(actual) AS actual, sum(estimated) AS estimated
FROM spent WHERE quarter_ms >= :since_ms GROUP BY lane ORDER BY lane

-- name: reserved
-- A row a lane, however many calls are in flight or undecided.
SELECT coalesce(sum(calls), 0) AS calls, coalesce(sum(unknown), 0) AS unknown, coalesce(sum(worst), 0) AS worst
FROM reserved

-- name: reserved_recounted
-- The same from the reservations themselves, all of which are read.
SELECT count(*) AS calls, count(*) - count(worst) AS unknown, coalesce(sum(worst), 0) AS worst FROM reservation
