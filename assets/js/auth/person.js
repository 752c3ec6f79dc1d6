// The current user and the right to change a run. The server enforces rights; this only avoids offering
// actions that would fail.

import { address, fetchJson } from "../shared/net.js";

// Used without a login, and if the request fails.
const EVERYBODY = { has_login: false, has_logout: false, name: "", role: "teacher" };
let asked = null;

/** Resolves to {has_login, has_logout, name, role} of the current user. */
export function person() {
  asked ??= fetchJson(address("live/me")).catch(() => {
    asked = null;
    return EVERYBODY;
  });
  return asked;
}

/** True if the user may stop, rename or delete a run of this owner. */
export function mayChange(who, owner) {
  return who.role === "teacher" || (who.name !== "" && owner === who.name);
}

/** The reason why a user may not change a run. */
export function whyNot(owner) {
  return owner
    ? `This run belongs to ${owner}. Only ${owner} or a teacher can change it.`
    : "This run has no owner. Only a teacher can change it.";
}
