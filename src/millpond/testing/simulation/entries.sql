-- What the simulation reads of a spend book after each step.

-- name: reservations
SELECT uid, queue, owner, lane, worst FROM reservation ORDER BY uid

-- name: charges
SELECT uid, queue, lane, at_ms, cost, is_estimate FROM charge ORDER BY uid

-- name: spent
SELECT quarter_ms, lane, charges, unknown, actual, estimated FROM spent
