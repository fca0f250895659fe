# Imports nothing: an archive carries this file beside handlers/, into workers that have no batchline installed.
