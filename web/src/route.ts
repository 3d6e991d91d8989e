// The state of the page is in the part of its address behind the #: any view is a link.
import { useLayoutEffect, useState } from "preact/hooks";

export type Route = { view: string; source: string; params: URLSearchParams };

export function parse(hash: string): Route {
  const [path, query] = hash.replace(/^#\/?/, "").split("?", 2);
  const [view, ...rest] = path.split("/");
  return { view: view || "", source: decodeURIComponent(rest.join("/")), params: new URLSearchParams(query || "") };
}

export type Changes = Record<string, string | string[] | number | null | undefined>;

export function link(view: string, source = "", changes: Changes = {}): string {
  return hashOf(view, source, apply(new URLSearchParams(), changes));
}

function hashOf(view: string, source: string, params: URLSearchParams): string {
  const path = source ? `${view}/${source.split("/").map(encodeURIComponent).join("/")}` : view;
  const query = params.toString();
  return `#/${path}${query ? "?" + query : ""}`;
}

function apply(params: URLSearchParams, changes: Changes): URLSearchParams {
  const next = new URLSearchParams(params);
  for (const [name, value] of Object.entries(changes)) {
    next.delete(name);
    if (Array.isArray(value)) value.forEach((item) => next.append(name, item));
    else if (value !== null && value !== undefined && value !== "") next.set(name, String(value));
  }
  return next;
}

// In the layout phase: effects run after the next frame, and a link that is opened before that would be missed.
export function useRoute(): Route {
  const [hash, set] = useState(location.hash);
  useLayoutEffect(() => {
    const listen = () => set(location.hash);
    addEventListener("hashchange", listen);
    return () => removeEventListener("hashchange", listen);
  }, []);
  return parse(hash);
}

// Change parts of the state; `replace` leaves no step in the history (stepping through pairs).
export function change(changes: Changes, replace = false) {
  const route = parse(location.hash);
  const hash = hashOf(route.view, route.source, apply(route.params, changes));
  if (replace) { history.replaceState(null, "", hash); dispatchEvent(new HashChangeEvent("hashchange")); }
  else location.hash = hash;
}

// In the layout phase: once a state is on the screen, a key acts on it, and never on the one before.
export function useKeys(keys: Record<string, () => void>, deps: unknown[]) {
  useLayoutEffect(() => {
    const listen = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) return;
      const run = keys[event.key];
      if (run) { event.preventDefault(); run(); }
    };
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, deps);
}
