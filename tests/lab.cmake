# Experiments (lab/) that take less than 20 s; each checks itself and exits with 1 where it does not find what it claims.
foreach(experiment E1 E3 E5 E8 E10)
  expect(lab.experiment_${experiment} OUTPUT "${experiment} passes: ([0-9]+) of ([0-9]+) checks" COMMAND halftone-lab experiment ${experiment})
endforeach()
expect(lab.unknown_experiment EXIT 1 MESSAGE "no experiment named .E33.. Did you mean .E3." COMMAND halftone-lab experiment E33)
