"""The batch contract of every cache of keys and values.

``KVCache`` and ``BatchKVCache`` follow it in full. The rotating and quantized caches follow it as
well, and add to it (see ``rotating``). Keys and values are (rows, heads, columns, width): a column
is a place in the buffer, and rows are aligned on the right, with padding in front.

- ``offset`` (rows,) counts a row's tokens, and starts at minus its padding. ``left_padding``
  (rows,) is the number of padding columns in front. ``_idx`` is the first unwritten column. A solo
  cache has one number, ``offset``, for all three.
- Reading ``offset``, ``left_padding`` or ``state`` returns objects that later updates of the cache
  do not change (``reads``).
- ``merge(rows)``: column ``left_padding[i]`` holds row i's first token. ``extract(idx)`` is the
  inverse: the solo cache of a row, without padding. Neither changes its arguments.
- ``filter(rows)`` keeps these rows in this order, and may drop columns that are padding in all of
  them. ``extend(other)`` appends the other batch's rows.
- ``prepare`` announces the padding of the next tokens; left padding only while the cache is
  empty. ``finalize`` moves right padding to the left, and clears the announcement.
- ``trim(n)`` removes the last n columns of every row.
- ``state``, ``meta_state`` and ``from_state``: a restored cache continues as the saved one would.
- ``make_mask(N)``: (rows, 1, N, columns), False at padding columns. Their content does not reach
  the row's tokens, not even NaN (``padding_nan``).
- ``size()`` is the number of written columns; ``empty()`` is whether there are none. All of the
  above also holds for empty caches, and for empty ones together with written ones
  (``empty_cache_ops``).
"""
