#!/usr/bin/env bash
# numpy's files are read, and what is written is read by numpy: arrays of every type and order go through npz_worker, and come
# back as they were.
#
#   tests/unit/npz_test.sh <npz_worker>
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"
worker=$1

# The first python3 on the PATH may not be the one that has numpy, which comes with python3-torch.
for python in python3 /usr/bin/python3; do
  "$python" -c 'import numpy' 2>/dev/null && break
done

cat >"$scratch/write.py" <<'END'
import sys
import numpy as np
draws = np.random.default_rng(7)
for dtype in ("float32", "float64", "int32", "int64", "uint8", "bool"):
    for shape in ((), (0,), (5,), (3, 4), (2, 0, 3), (2, 3, 4, 5)):
        for order in "CF":
            array = np.asarray(draws.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype), order=order)
            np.save(f"{sys.argv[1]}/{dtype}.{'x'.join(map(str, shape))}.{order}.npy", array)
for version in ((2, 0), (3, 0)):
    with open(f"{sys.argv[1]}/version{version[0]}.npy", "wb") as file:
        np.lib.format.write_array(file, np.arange(6.0).reshape(2, 3), version=version)
END
cat >"$scratch/read.py" <<'END'
import glob, os, sys, zipfile
import numpy as np
files = sorted(glob.glob(f"{sys.argv[1]}/*.npy"))
for name in ("all.npz", "wide.npz"):
    assert zipfile.ZipFile(f"{sys.argv[1]}/{name}").testzip() is None
    with np.load(f"{sys.argv[1]}/{name}") as found:
        assert len(found.files) == len(files), (len(found.files), len(files))
        for file in files:
            expected = np.load(file)
            array = found[os.path.basename(file)[:-len(".npy")]]
            assert array.dtype == expected.dtype and array.shape == expected.shape and (array == expected).all(), file
print(f"{len(files)} arrays are the same")
END
expect 0 "" "$python" "$scratch/write.py" "$scratch"
expect 0 "" "$worker" "$scratch"
expect 0 "74 arrays are the same" "$python" "$scratch/read.py" "$scratch"
finish
