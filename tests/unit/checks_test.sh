#!/usr/bin/env bash
# Each check of checks/ finds nothing in a small tree that is right, and finds each mistake put into it.
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
checks=$root/checks
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"

# Two layers, lower and upper; upper stands on lower.
plant() {
  rm -rf "$scratch/tree"
  mkdir -p "$scratch/tree"/{include/tutti/lower,include/tutti/upper,src/lower,src/upper,tests,benchmarks,build/release}
  cd "$scratch/tree" || exit 1
  cp "$root/.clang-format" .
  echo '#pragma once' | tee include/tutti/lower/a.hpp src/lower/private.hpp >include/tutti/upper/b.hpp
  printf '#include <tutti/lower/a.hpp>\n\n#include "private.hpp"\n' >src/lower/a.cpp
  printf '#include <tutti/lower/a.hpp>\n#include <tutti/upper/b.hpp>\n' >src/upper/b.cpp
  printf '#include "lower/private.hpp"\n' >tests/a_test.cpp
  printf 'int main() {}\n' >benchmarks/fast.cpp
  printf 'add_executable(fast fast.cpp)\n' >benchmarks/CMakeLists.txt
  printf '#!/usr/bin/env bash\necho hello\n' >run
  printf 'lower:\nupper: lower\n' >build/release/layers.txt
  printf '%s\n' include/tutti/lower/a.hpp include/tutti/upper/b.hpp src/lower/a.cpp src/upper/b.cpp tests/a_test.cpp \
    >build/release/sources.txt
  cd "$scratch" || exit 1
}
tree=$scratch/tree

plant
for check in formatting scripts orphans layering; do
  expect 0 "" "$checks/$check" "$tree"
done

echo '#include <tutti/upper/b.hpp>' >>"$tree/src/lower/a.cpp"
expect 1 "src/lower/a.cpp:4: lower includes <tutti/upper/b.hpp>, but there is no arrow lower -> upper" "$checks/layering" "$tree"
plant
echo '#include "tutti/upper/b.hpp"' >>"$tree/include/tutti/lower/a.hpp"
expect 1 "no arrow lower -> upper" "$checks/layering" "$tree"
plant
echo '#include "../lower/private.hpp"' >>"$tree/src/upper/b.cpp"
expect 1 'src/upper/b.cpp:3: "../lower/private.hpp" is a private header of lower' "$checks/layering" "$tree"
plant
echo '#include "lower/private.hpp"' >>"$tree/include/tutti/upper/b.hpp"
expect 1 "is a private header of lower" "$checks/layering" "$tree"
plant
echo '#include <tutti/lower/missing.hpp>' >>"$tree/src/upper/b.cpp"
expect 1 "<tutti/lower/missing.hpp> is no header of tutti" "$checks/layering" "$tree"
plant
echo '#include <torch/torch.h>' >>"$tree/src/upper/b.cpp"
expect 1 "upper includes <torch/torch.h>, but is free of torch" "$checks/layering" "$tree"
printf 'lower:\nupper: lower [torch]\n' >"$tree/build/release/layers.txt"
expect 0 "" "$checks/layering" "$tree"
plant
printf 'lower: upper\nupper: lower\n' >"$tree/build/release/layers.txt"
expect 1 "the arrows go in a circle" "$checks/layering" "$tree"
plant
mkdir "$tree/src/attic"
echo '#include <vector>' >"$tree/src/attic/old.cpp"
expect 1 "is no layer: attic" "$checks/layering" "$tree"
expect 1 "src/attic/old.cpp: no target compiles this file" "$checks/orphans" "$tree"

plant
touch "$tree/tests/forgotten_test.cpp"
expect 1 "tests/forgotten_test.cpp: no target compiles this file" "$checks/orphans" "$tree"
plant
touch "$tree/include/tutti/upper/forgotten.hpp"
expect 1 "include/tutti/upper/forgotten.hpp: no layer installs this header" "$checks/orphans" "$tree"
plant
touch "$tree/src/upper/forgotten.hpp"
expect 1 "src/upper/forgotten.hpp: nothing includes this header" "$checks/orphans" "$tree"
plant
touch "$tree/benchmarks/slow.cpp"
echo '# slow.cpp, some day' >>"$tree/benchmarks/CMakeLists.txt"
expect 1 "benchmarks/slow.cpp: no CMake file beside it or above names it" "$checks/orphans" "$tree"
plant
touch "$tree/tests/forgotten_test.sh"
expect 1 "tests/forgotten_test.sh: no CMake file" "$checks/orphans" "$tree"

plant
echo 'int  answer( ) {return 42 ;}' >>"$tree/src/upper/b.cpp"
expect 1 "+int answer() { return 42; }" "$checks/formatting" "$tree"
plant
echo 'if then' >>"$tree/run"
expect 1 "syntax error" "$checks/scripts" "$tree"
plant
# shellcheck disable=SC2016
echo 'rm $1' >>"$tree/run"
expect 1 "SC2086" "$checks/scripts" "$tree"

# The README: commands that fail, and the spelling under which one could hide.
readme() { printf '%s\n' "$@" >"$tree/README.md"; }
plant
readme '```sh' 'echo one > written' 'cat written' './check' '```' '```text' 'false' '```'
expect 0 "not run here: ./check" "$checks/readme_commands" "$tree"
expect 1 "" test -e "$tree/written"
readme 'words' '```sh' 'true' 'false' 'true' '```'
expect 1 "README.md:3: a command failed" "$checks/readme_commands" "$tree"
readme '```console' 'true' '```'
expect 1 "belong in a block that starts with" "$checks/readme_commands" "$tree"
readme 'only words'
expect 1 "shows no command" "$checks/readme_commands" "$tree"

finish
