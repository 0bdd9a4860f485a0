-- The spend book: money of record, kept for good and shared by any number of queues. Money is whole micro-dollars;
-- NULL is unknown, and never 0.

CREATE TABLE reservation (
  uid   TEXT PRIMARY KEY,                         -- the attempt's
  queue TEXT NOT NULL,                            -- uuid of the queue whose ledger has the attempt, or will have it
  owner TEXT NOT NULL,                            -- who reserved; only that queue knows whether it lives
  lane  TEXT NOT NULL,
  at_ms INTEGER NOT NULL,
  worst INTEGER CHECK (worst >= 0)                -- the most that the call can cost
) WITHOUT ROWID;
CREATE INDEX reservation_queue ON reservation (queue, uid, owner);

CREATE TABLE charge (
  uid         TEXT PRIMARY KEY,                   -- the attempt's: an attempt is charged once
  queue       TEXT NOT NULL,
  lane        TEXT NOT NULL,
  at_ms       INTEGER NOT NULL,                   -- when the attempt began: its money is of that day
  cost        INTEGER CHECK (cost >= 0),
  is_estimate INTEGER NOT NULL CHECK (is_estimate IN (0, 1))   -- the attempt's end is unknown; evidence replaces it
) WITHOUT ROWID;

-- Charges added up by quarters of an hour, of which every time zone's day is made: a day is read in at most 96 rows a
-- lane, however many charges it has. Changed in the transaction of the charge.
CREATE TABLE spent (
  quarter_ms INTEGER NOT NULL,                    -- where it begins
  lane       TEXT NOT NULL,
  charges    INTEGER NOT NULL,
  unknown    INTEGER NOT NULL,                    -- charges without a cost
  actual     INTEGER NOT NULL,
  estimated  INTEGER NOT NULL,
  PRIMARY KEY (quarter_ms, lane)
) WITHOUT ROWID;
