-- The statements of the spend book, by name.

-- name: reserve
-- Every attempt reserves, if only NULL. One statement, so that the check of a cap can stand in it.
INSERT INTO reservation (uid, queue, owner, lane, at_ms, worst)
SELECT :uid, :queue, :owner, :lane, :now_ms, :worst
ON CONFLICT (uid) DO NOTHING

-- name: release
DELETE FROM reservation WHERE uid = :uid AND queue = :queue

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

-- name: reservations
-- Of one queue: whether another's owners live is not known here.
SELECT uid, owner FROM reservation WHERE queue = :queue AND uid > :after ORDER BY uid LIMIT :limit

-- name: spent_since
SELECT lane, sum(charges) AS charges, sum(unknown) AS unknown, sum(actual) AS actual, sum(estimated) AS estimated
FROM spent WHERE quarter_ms >= :since_ms GROUP BY lane ORDER BY lane

-- name: reserved
-- As many rows as there are calls in flight and undecided ones.
SELECT count(*) AS calls, count(*) - count(worst) AS unknown, coalesce(sum(worst), 0) AS worst FROM reservation
