// Policies as files: the headers for users of policy/.
#pragma once

#include <halftone/policy/telemetry/overflow.h>
#include <halftone/policy/file/policy_file.h>
#include <halftone/policy/telemetry/probe.h>
#include <halftone/policy/rules/rulebook.h>
#include <halftone/policy/session/session.h>
#include <halftone/policy/rules/site.h>
