# Puts a fault of faults.txt into the solution of its task, and prints the result:
#
#   awk -v task=03_stochastic_rounding -v name=coin -f fault.awk faults.txt solutions/03_stochastic_rounding.h
#
# It fails if there is no such fault, or if a part of the fault is not found exactly once in the solution. Without the name and the
# solution, it prints the first lines of the faults of the task.
function bare(line) { gsub(/^[ \t]+|[ \t]+$/, "", line); return line }
function stop(message) { print "faults.txt, " task ", " name ": " message > "/dev/stderr"; failed = 1; exit 1 }

# Whether part p is found from line `at` of the solution on.
function matches(p, at,   i, line) {
  for (i = 1; i <= size[p]; ++i)
    if (kind[p, i] != "+" && bare(solution[at + line++]) != bare(substr(body[p, i], 2))) return 0
  return 1
}

FNR == NR && /^#/ { next }
FNR == NR && /^== / { in_task = ($2 == task); next }
FNR == NR && /^$/ { in_fault = 0; next }
FNR == NR && in_task && !in_fault {
  in_fault = 1; in_this = ($1 == name)
  if (name == "") print
  if (in_this) { ++found; ++parts }
  next
}
FNR == NR && in_task && in_fault && in_this {
  if ($0 == "...") { ++parts; next }
  if ($0 !~ /^[-+ ] /) stop("a line begins with \"- \", \"+ \" or two spaces: " $0)
  i = ++size[parts]; body[parts, i] = $0; kind[parts, i] = substr($0, 1, 1)
  if (kind[parts, i] != "+") ++old[parts]
  next
}
FNR != NR { solution[++lines] = $0 }

END {
  if (failed || name == "") exit failed
  if (found != 1) stop(found ? "two faults have this name" : "there is no such fault")
  for (p = 1; p <= parts; ++p) {
    if (!old[p]) stop("part " p " has no line of the solution")
    count = 0
    for (at = 1; at + old[p] - 1 <= lines; ++at) if (matches(p, at)) { ++count; part_at[at] = p }
    if (count != 1) stop("these lines occur " count " times in the solution, wanted once: " substr(body[p, 1], 3))
  }
  for (at = 1; at <= lines; ++at) {
    if (!(at in part_at)) { print solution[at]; continue }
    p = part_at[at]
    for (i = 1; i <= size[p]; ++i) {
      if (kind[p, i] == "+") print substr(body[p, i], 3)
      else { if (kind[p, i] == " ") print solution[at]; ++at }
    }
    --at
  }
}
