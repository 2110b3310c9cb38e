// One pass over the rows.
#include <halftone/policy/telemetry/worst_rows.h>

namespace halftone::policy {

void WorstRows::add(const std::vector<ProbeRow>& rows, const std::vector<UpdateRow>& updates) {
  for (const UpdateRow& row : updates)
    if (row.state.empty()) stored.add(row.stored);
  for (const ProbeRow& row : rows) {
    if (row.quantizer.empty()) continue;
    const std::string place = row.site + ' ' + std::string(name(row.role));
    if (const double share = row.survey.underflow(); share > underflow)
      underflow = share, underflow_at = place;
    if (const double decibels = row.survey.sqnr(); decibels < sqnr)
      sqnr = decibels, sqnr_at = place;
  }
}

}  // namespace halftone::policy
