# Puts a fault of faults.txt into the solution of its task, and prints the result:
#
#   awk -v task=03_stochastic_rounding -v name=coin -f fault.awk faults.txt solutions/03_stochastic_rounding.h
#
# It fails if there is no such fault, or if a part of the fault is not found exactly once in the solution. Without the name and the
# solution, it prints the first lines of the faults of the task.
function bare(line) { gsub(/[ \t]+/, " ", line); gsub(/^ | $/, "", line); return line }
function stop(message) { print "faults.txt, " task ", " name ": " message > "/dev/stderr"; failed = 1; exit 1 }

# Whether part p is found from line `at` of the solution on.
function matches(p, at,   i) {
  for (i = 1; i <= size[p]; ++i)
    if (sign[p, i] != "+" && bare(solution[at++]) != bare(text[p, i])) return 0
  return 1
}

FNR != NR { solution[++lines] = $0; next }
/^(#|$)/ { next }
/^== / { in_task = ($2 == task); in_fault = 0; next }
!in_task { next }
/^[^ ]/ {
  if (name == "") print
  in_fault = ($1 == name)
  if (in_fault) { ++found; ++parts }
  next
}
in_fault && $0 == "  ..." { ++parts; next }
in_fault {
  if ($0 !~ /^  [-+ ] /) stop("a line begins with \"  - \", \"  + \" or four spaces: " $0)
  i = ++size[parts]; sign[parts, i] = substr($0, 3, 1); text[parts, i] = substr($0, 5)
  if (sign[parts, i] != "+") ++old[parts]
}

END {
  if (failed || name == "") exit failed
  if (found != 1) stop(found ? "two faults have this name" : "there is no such fault")
  for (p = 1; p <= parts; ++p) {
    count = 0
    for (at = 1; at + old[p] - 1 <= lines; ++at) if (matches(p, at)) { ++count; part_at[at] = p }
    if (count != 1) stop("these lines occur " count " times in the solution, wanted once: " text[p, 1])
  }
  for (at = 1; at <= lines; ) {
    if (!(at in part_at)) { print solution[at++]; continue }
    p = part_at[at]
    for (i = 1; i <= size[p]; ++i) {
      if (sign[p, i] == "+") print text[p, i]
      if (sign[p, i] == " ") print solution[at]
      if (sign[p, i] != "+") ++at
    }
    ++done
  }
  if (done != parts) stop("two parts overlap")
}
