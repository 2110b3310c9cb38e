// What a checkpoint says about the program that wrote it.
#include <halftone/train/environment.h>

#include <omp.h>

#include <halftone/core/backend.h>
#include <halftone/core/plain_numbers.h>

namespace halftone::train {

std::string environment_of(Device device) {
  PlainText text;
  text << "halftone " HALFTONE_VERSION;
  const Backend& backend = backend_for(device);
  for (const BackendStatus& status : backend_statuses())
    if (status.backend == &backend) text << ", " << status.name << ": " << status.description;
  text << ", " << omp_get_max_threads() << " threads";
  return text.str();
}

}  // namespace halftone::train
