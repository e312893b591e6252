// Why a socket was not opened, which a page cannot see of the socket itself.

const UPGRADE_REQUIRED = 426;

// Ask over HTTP at the same address: {status, error} with the error's `retry_after` in seconds, or null where the
// socket would be taken, or nothing answers.
export async function refusal(address, headers) {
  const answer = await fetch(address, { headers }).catch(() => null);
  if (!answer || answer.status === UPGRADE_REQUIRED) return null;
  const { error } = await answer.json().catch(() => ({}));
  const retry_after = Number(answer.headers.get("retry-after") ?? 0);
  return error ? { status: answer.status, error: { ...error, retry_after } } : null;
}
