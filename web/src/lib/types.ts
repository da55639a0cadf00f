// The documents of the REST interface, as the commands print them with --json. Field names are the server's.

export type Role = 'read' | 'operate' | 'admin'
export type Kind = 'volume' | 'share' | 'folder'

export interface Session {
  user: string
  role: Role
  boot: string
}

export interface ShaleObject {
  id: number
  name: string
  kind: Kind
  size_bytes: number
  allocated_bytes: number
  /** What its snapshots and clones hold is included. */
  stored_bytes: number
  /** The part of them that only snapshots and clones hold; only when it was asked for. */
  snapshot_stored_bytes?: number
  created_unix_s: number
  clients: number
  client_names: string[]
  origin: string | null
  incomplete: boolean
  unserved: string | null
}

export interface Property {
  key: string
  value: string
  source: string
  folder: string | null
  /** Number of the folder that the value comes from. */
  source_id?: number | null
  /** Values to choose among; none: a size, a number or a list. */
  values: string[]
  /** Allowed values, in words. */
  allowed: string
  description: string
  /** Rules that a rule set puts in force, by type of file. */
  rules: Record<string, string>
  /** Set on the object that was asked for. */
  here?: boolean
  /** The value without the one that is set here. */
  inherited?: Property
}

export interface Properties {
  properties: Property[]
  notes: string[]
}

export interface Snapshot {
  id: number
  volume: string
  name: string
  size_bytes: number
  created_unix_s: number
  scheduled: boolean
  unique_bytes: number
  shared_bytes: number
  data_bytes: number
  clients: number
  incomplete: boolean
  holds: string[]
}

export interface EstimateLine {
  setting: string
  configured: boolean
  saving_percent: number
  margin_percent: number | null
  stored_bytes: number
  cpu_seconds: number
  joules: number
  mb_per_second: number | null
  write_mb_per_second: number | null
  write_bound: 'disk' | 'cpu' | null
  /** Speed of reads relative to the setting that was in force. */
  read_factor: number | null
  rewrite_seconds: number | null
}

export interface Estimate {
  path: string | null
  assumed: Record<string, string>
  state: JobState
  error: { kind: string; message: string } | null
  /** 0 before the first figures. */
  at_unix_s: number
  unit_bytes: number
  data_bytes: number
  sampled_bytes: number
  cpu_watts: number
  energy_source: string
  settings: EstimateLine[]
}

export type JobState = 'running' | 'paused' | 'cancelling' | 'done' | 'failed' | 'cancelled'

export interface Job {
  id: number
  kind: string
  target: string | null
  state: JobState
  phase: string
  bytes_done: number
  bytes_total: number | null
  bytes_per_second: number | null
  seconds_left: number | null
  started_unix_s: number
  ended_unix_s: number | null
  seconds: number
  error: { kind: string; message: string } | null
}

export interface Status {
  pool: string
  uptime_s: number
  health: string
  used_percent: number
  available_bytes: number
  reserved_bytes: number
  capacity_bytes: number
  volumes: number
  logical_bytes: number
  allocated_bytes: number
  stored_bytes: number
  dead_bytes: number
  map_bytes: number
  write_amplification: number | null
  shares: string | null
  nbd: string[]
  refused_writes: number
  full: boolean
  scrub: { started_unix_s: number; finished_unix_s: number; running: boolean; bytes_done: number; bytes_total: number; found: number }
}

export interface Finding {
  kind: string
  words: string
  /** What to do about it; empty: nothing. */
  advice: string
}

export interface Health {
  health: string
  findings: Finding[]
}

export interface ObjectFigures {
  ops_per_s: number
  read_bytes_per_s: number
  written_bytes_per_s: number
}

export interface Figures {
  boot: string
  unix_s: number
  pool: ObjectFigures & {
    p99_ns: number | null
    cpus: number
    cpu_cores: number
    compress_cores: number
    watts: number | null
    energy_source: string
    disk_written_bytes_per_s: number
    disk_written_by_codec: Record<string, number>
    stored_bytes: number
    allocated_bytes: number
    available_bytes: number
  }
  objects: Record<string, ObjectFigures>
}

export interface Dataset {
  dataset: string
  title: string
  kind: 'rate' | 'gauge' | 'histogram'
  breakdowns: string[]
}

export interface Datasets {
  datasets: Dataset[]
  /** First second that is kept in steps of 1 s, 10 s and 5 min. */
  oldest: (number | null)[]
}

export interface Column {
  key: string
  values: (number | null)[]
}

export interface Series {
  by: string | null
  unit: string
  from: number
  step: number
  series: Column[]
  left_out: number
}

export interface Heatmap {
  from: number
  step: number
  bucket_ends_ns: number[]
  columns: number[][]
}

export interface Mark {
  unix_s: number
  text: string
}

export interface Entry {
  name: string
  kind: 'file' | 'directory' | 'symlink' | 'other'
  size_bytes: number
  stored_bytes: number | null
  modified_unix_s: number
}

export interface UsageLine {
  name: string
  files: number
  size_bytes: number
  raw_bytes: number
  stored_bytes: number
}

export interface Usage {
  total: UsageLine
  entries: UsageLine[]
  types: UsageLine[]
}

export interface Cell {
  /** Byte at which its data begins. */
  offset: number
  codec: string
  raw_bytes: number
  stored_bytes: number
}

export interface ExplainMap {
  size_bytes: number
  cell_bytes: number
  looked_at_percent: number
  cells: (Cell | null)[]
}

export interface Trial {
  codec: string
  stored_bytes: number | null
  cpu_us: number
  expected_saving_percent: number
  cost: number | null
  energy_uj: number
  verdict: string
}

export interface Detail {
  offset: number
  raw_bytes: number
  stored_bytes: number
  class: string
  bits_per_byte: number
  chosen: string
  why: string
  compression: string
  mode: string
  unit_bytes: number
  trials: Trial[]
}

export interface ExportLine {
  share: string
  door: string
  access: string
  address: string | null
  fault: string | null
}

export interface Exports {
  dir: string | null
  exports: ExportLine[]
  checks: { what: string; good: boolean; warns: boolean; found: string }[]
}

export interface Diff {
  changes: { offset: number; length: number; now: string }[]
  next: number | null
}

export interface User {
  name: string
  role: Role
  password_set_unix_s: number
}

export interface Token {
  name: string
  role: Role
  expires_unix_s: number | null
  last_used_unix_s: number | null
}

export interface AuditEntry {
  unix_s: number
  who: string
  from: string
  operation: string
  /** The objects and values of the request, in words. */
  about: string
  outcome: 'done' | 'failed' | 'refused'
  error?: string
}

/** A graph of a worksheet. */
export type GraphSpec = { dataset: string; by: string | null; only: Record<string, string>; form: 'stacked' | 'lines' | 'heat' }

export type Worksheet = { span_s: number; graphs: GraphSpec[] }
