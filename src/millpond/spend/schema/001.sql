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

-- Reservations added up: a call whose end nobody decides stays reserved, so there may be any number of them. Changed in the
-- transaction of the reservation.
CREATE TABLE reserved (
  lane    TEXT PRIMARY KEY,
  calls   INTEGER NOT NULL CHECK (calls >= 0),
  unknown INTEGER NOT NULL CHECK (unknown BETWEEN 0 AND calls),   -- reservations whose worst case nobody can tell
  worst   INTEGER NOT NULL CHECK (worst >= 0)
) WITHOUT ROWID;

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
  charges    INTEGER NOT NULL CHECK (charges > 0),
  unknown    INTEGER NOT NULL CHECK (unknown BETWEEN 0 AND charges),   -- charges without a cost
  actual     INTEGER NOT NULL CHECK (actual >= 0),
  estimated  INTEGER NOT NULL CHECK (estimated >= 0),
  PRIMARY KEY (quarter_ms, lane)
) WITHOUT ROWID;
