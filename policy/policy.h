// Policies as files: everything that users of policy/ include.
#pragma once

#include <halftone/policy/telemetry/overflow.h>
#include <halftone/policy/file/policy_file.h>
#include <halftone/policy/telemetry/probe.h>
#include <halftone/policy/rules/rulebook.h>
#include <halftone/policy/session/session.h>
#include <halftone/policy/rules/site.h>
