#!/usr/bin/env bash
# The driver of `./bench population`, with a tutti that only says what it was asked.
#
#   tests/unit/bench_population_test.sh <the driver>
set -uo pipefail
root=$(readlink -f -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/unit/expect.sh
source "$root/tests/unit/expect.sh"
# It starts what lies beside it, and gives it a temporary folder, which it removes.
mkdir "$scratch/bin" "$scratch/temporary"
cp -- "$1" "$scratch/bin/driver"
driver=(env "TMPDIR=$scratch/temporary" "$scratch/bin/driver")

printf '#!/usr/bin/env bash\necho Haswell\n' >"$scratch/bin/data_parallel_engines"
# Two members take 20 seconds one after the other, 10 at the same time, and 9.9 each by themselves.
cat >"$scratch/bin/tutti" <<'END_OF_TUTTI'
#!/usr/bin/env bash
printf 'tutti %s OMP=%s CORETYPE=%s\n' "$*" "$OMP_NUM_THREADS" "${OPENBLAS_CORETYPE:-}" >>"${0%/*}/asked"
[[ $1 == launch ]] && { while [[ $1 != -- ]]; do shift; done; shift 2; }
[[ $1 == train && -e $2 && $3 == --json && $4 == --output && $6 == --set ]] || exit 3
[[ -e $5 ]] && { echo "$5 is there already" >&2; exit 4; }
mkdir "$5"
cp -- "$2" "${0%/*}/trained_${5##*/}.json"
generations=0 members="" together=10 after_another=20 alone=9.9 accuracy=0.85 failure="" split=validation
for word in "$@"; do
  case $word in
    graph.strategy.generations=* | train.epochs=*) generations=${word#*=} ;;
    graph.strategy.population_size=*) members=${word#*=} ;;
    graph.strategy.threads=1) together=$after_another ;;
  esac
done
echo '{"event":"run_started"}'
for ((generation = 1; generation <= generations; ++generation)); do
  for ((member = 0; member < members; ++member)); do
    echo "{\"event\":\"member_evaluated\",\"generation\":$generation,\"member\":$member,\"failure\":\"$failure\",\"measured\":{\"loss\":0.5,\"accuracy\":$accuracy$member}}"
  done
  if [[ $members ]]; then
    echo "{\"event\":\"generation_ended\",\"generation\":$generation,\"seconds\":0.5}"
  else
    echo "{\"event\":\"evaluation_ended\",\"epoch\":$generation,\"seconds\":0.5,\"split\":\"$split\",\"metrics\":{\"accuracy\":$accuracy}}"
    echo '{"event":"checkpoint_written"}'
  fi
done
[[ $members ]] && alone=$together
echo "{\"event\":\"run_ended\",\"reason\":\"finished\",\"seconds\":$alone}"
END_OF_TUTTI
chmod +x "$scratch"/bin/{tutti,data_parallel_engines}
cp -- "$root/examples/population.json" "$scratch/bin"

# All of it: 3 populations and 2 members by themselves, twice.
"${driver[@]}" --json --passes 2 --generations 3 >"$scratch/lines" 2>"$scratch/errors" || expect 0 "" cat "$scratch/errors"
expect 0 "4 $scratch/lines" wc -l "$scratch/lines"
expect 0 '{"engine":"tutti","generations":3,"training_seconds":10.0,"program_seconds":' cat "$scratch/lines"
expect 0 '{"engine":"tutti-processes","generations":3,"training_seconds":10.0,"program_seconds":' cat "$scratch/lines"
expect 0 '{"engine":"tutti-1","generations":3,"training_seconds":20.0,"program_seconds":' cat "$scratch/lines"
expect 0 '{"engine":"alone","generations":3,"training_seconds":19.8,"program_seconds":' cat "$scratch/lines"
expect 0 "3" grep -c ',"best":0.851,"passes":2}' "$scratch/lines"
expect 0 "1" grep -c ',"best":0.85,"passes":2}' "$scratch/lines"
expect 0 "10 $scratch/bin/asked" wc -l "$scratch/bin/asked"
expect 0 "10" grep -c "OMP=1 CORETYPE=Haswell" "$scratch/bin/asked"
# Rows to test with are nobody's.
expect 0 "10" grep -c -- "--set data.source=idx --set data.train_images=/usr/share/.* --set data.train_labels=/usr/share/.* --set data.split.test=0 " \
  "$scratch/bin/asked"
population='--set graph.strategy.population_size=2 --set graph.strategy.generations=3 --set graph.strategy.generation={"epochs": 1}'
population+=' --set graph.strategy.exploit={"method": "None"} --set graph.strategy.threads'
search='--set search={"optimizer.lr": {"float": \[0.01, 0.1\], "scale": "log"}}'
expect 0 "2" grep -c "^tutti train .*/tutti --set data.* $population=2 $search OMP" "$scratch/bin/asked"
expect 0 "2" grep -c "^tutti train .*/tutti-1 --set data.* $population=1 $search OMP" "$scratch/bin/asked"
expect 0 "2" grep -c "^tutti launch --processes 2 --no-prefix -- $scratch/bin/tutti train .*/tutti-processes --set data.* $population=2 $search OMP" \
  "$scratch/bin/asked"
alone='--set graph.strategy={"type": "Local"} --set train.epochs=3 --set train.log_every=1000000 --set optimizer.lr'
expect 0 "2" grep -c "^tutti train .*/alone-0 --set data.* $alone=0.03 OMP" "$scratch/bin/asked"
expect 0 "2" grep -c "^tutti train .*/alone-1 --set data.* $alone=0.06 OMP" "$scratch/bin/asked"
expect 0 '"graph.drop.p": {"float"' cat "$scratch/bin/trained_tutti.json"
expect 0 '"id": "drop"' cat "$scratch/bin/trained_alone-1.json"
expect 1 "" grep search "$scratch/bin/trained_alone-1.json"
expect 0 "" rmdir "$scratch/temporary"
mkdir "$scratch/temporary"

# As a table and targets, and a choice of engines.
table=$("${driver[@]}" --passes 1 2>&1)
expect 0 "2 members, 6 generations of an epoch" echo "$table"
expect 0 "10.0 s                    85.10 %                          1.00x      1.00x" echo "$table"
expect 0 "reached  two members on two cores at least 1.8 times as fast as one after the other  2.00x" echo "$table"
expect 0 "reached  the controller adds at most 2 % to training the same members alone          +1.0 %" echo "$table"
expect 0 "19.8 s                    85.00 %                              -          -" "${driver[@]}" --engine alone --passes 1
expect 0 "1 generation of an epoch" "${driver[@]}" --engine tutti --passes 1 --generations 1
expect 0 "-        two members on two cores at least 1.8 times as fast as one after the other  not measured" \
  "${driver[@]}" --engine tutti,alone --passes 1
expect 0 "-        the controller adds at most 2 % to training the same members alone          not measured" \
  "${driver[@]}" --engine tutti,alone --passes 1
sed -i 's/together=10 after_another=20 alone=9.9/together=11.5 after_another=20.5 alone=10/' "$scratch/bin/tutti"
expect 0 "MISSED   two members on two cores at least 1.8 times as fast" "${driver[@]}" --engine tutti,tutti-1 --passes 1
expect 0 "MISSED   the controller adds at most 2 % to training the same members alone          +2.5 %" \
  "${driver[@]}" --engine tutti-1,alone --passes 1

# One that fails, learns nothing or does something else is told, and the others are still measured.
cp "$scratch/bin/tutti" "$scratch/tutti"
changed() {  # <what the fake does> <instead>
  sed "s/$1/$2/" "$scratch/tutti" >"$scratch/bin/tutti"
}
changed accuracy=0.85 accuracy=0.75
expect 1 "after 6 generations 75.1 % of the images for validation are told right, expected 80 %" "${driver[@]}" --engine tutti --passes 1
expect 0 "75.10 %" "${driver[@]}" --engine tutti --passes 1 --generations 1
changed finished interrupted
expect 1 "it did not tell that it finished, with 2 members evaluated in each of 6 generations" "${driver[@]}" --engine tutti --passes 1
expect 1 "it did not tell that it finished, with a member evaluated in each of 6 generations" "${driver[@]}" --engine alone --passes 1
changed "generation = 1" "generation = 2"
expect 1 "it did not tell that it finished, with 2 members" "${driver[@]}" --engine tutti --passes 1
changed "member = 0" "member = 1"
expect 1 "it did not tell that it finished, with 2 members" "${driver[@]}" --engine tutti,alone --passes 1
expect 1 "20.0 s                    85.00 %" "${driver[@]}" --engine tutti,alone --passes 1
changed 'failure=""' "failure=tired"
expect 1 "a member failed: " "${driver[@]}" --engine tutti --passes 1
changed split=validation split=test
expect 1 "it evaluated more than a member does: " "${driver[@]}" --engine alone --passes 1
changed checkpoint_written warned
expect 1 "it wrote 0 checkpoints, expected one after each of 6 epochs" "${driver[@]}" --engine alone --passes 1
# Half of what is compared is nothing to compare with.
# shellcheck disable=SC2016
changed "generations=0" '[[ $5 == *alone-1 ]] \&\& { echo tired >\&2; exit 5; }; generations=0'
expect 1 "alone-1, 6 generations failed" "${driver[@]}" --engine alone --passes 2
expect 1 "not measured" "${driver[@]}" --engine tutti-1,alone --passes 1
printf '#!/usr/bin/env bash\necho nonsense\n' >"$scratch/bin/tutti"
expect 1 "expected JSON objects, found 'nonsense" "${driver[@]}" --engine tutti --passes 1
rm "$scratch/bin/population.json"
expect 1 "cannot read $scratch/bin/population.json" "${driver[@]}" --engine alone --passes 1

expect 0 "--generations INT" "${driver[@]}" --help
expect 2 "there is no option --seconds" "${driver[@]}" --seconds 1
expect 2 "--generations: Value 0 not in range 1 to 1000" "${driver[@]}" --generations 0
expect 2 "--engine: expected tutti, tutti-processes, tutti-1, alone, found 'together'" "${driver[@]}" --engine tutti,together
finish
