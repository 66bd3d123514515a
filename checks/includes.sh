# shellcheck shell=bash
# Sourced by the checks that read #include lines.

# Prints a line for each #include in the repository's C++ files: the file, the line's number, the name as it is spelled,
# and the file of the repository it means, or "-" when it means none. The four are separated by tabs.
resolved_includes() (  # <root>
  cd "$1" || exit 1
  local folder folders=()
  for folder in include src tests benchmarks examples; do
    [[ -d $folder ]] && folders+=("$folder")
  done
  {
    find "${folders[@]}" -type f -name '*.[chi]*' | LC_ALL=C sort
    grep -rnE --include='*.[chi]*' '^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]' "${folders[@]}"
  } |
    awk -v OFS='\t' '
      function normal(path,    parts, n, i, kept, out) {  # a/b/../c/./d becomes a/c/d
        n = split(path, parts, "/"); kept = 0
        for (i = 1; i <= n; i++) {
          if (parts[i] == "." || parts[i] == "") continue
          if (parts[i] == ".." && kept > 0) { kept--; continue }
          parts[++kept] = parts[i]
        }
        out = parts[1]
        for (i = 2; i <= kept; i++) out = out "/" parts[i]
        return out
      }
      !/:/ { known[$0] = 1; next }  # the files come first, then the lines found in them
      {
        file = $0; sub(/:.*/, "", file)
        rest = substr($0, length(file) + 2)
        number = rest; sub(/:.*/, "", number)
        name = rest; sub(/^[^<"]*/, "", name); quoted = substr(name, 1, 1) == "\""
        name = substr(name, 2); sub(/[>"].*/, "", name)
        folder = file; sub(/[^\/]*$/, "", folder)
        target = "-"
        if (quoted && normal(folder name) in known) target = normal(folder name)
        else if (normal("include/" name) in known) target = normal("include/" name)
        else if (normal("src/" name) in known) target = normal("src/" name)
        else if (normal("tests/" name) in known) target = normal("tests/" name)
        else if (normal("benchmarks/" name) in known) target = normal("benchmarks/" name)
        else if (normal(name) in known) target = normal(name)
        print file, number, (quoted ? "\"" name "\"" : "<" name ">"), target
      }'
)
