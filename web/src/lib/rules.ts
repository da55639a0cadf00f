// Rules by file type: a codec or `auto`, for all modes or for each, as `archive:zstd-9,performance:lz4`.

export const MODES = ['performance', 'energy', 'balanced', 'archive'] as const
/** Key of the part of a rule that is for all modes not named. */
export const REST = ''

export function parseRule(text: string): Map<string, string> {
  const parts = text.split(',').filter(Boolean).map((item) => item.trim().split(':'))
  return new Map(parts.map(([left = '', right]) => (right === undefined ? [REST, left] : [left, right])))
}

export function writeRule(rule: Map<string, string>): string | null {
  const items = MODES.filter((mode) => rule.get(mode)).map((mode) => `${mode}:${rule.get(mode)}`)
  if (rule.get(REST)) items.push(rule.get(REST) ?? '')
  return items.length ? items.join(',') : null
}
