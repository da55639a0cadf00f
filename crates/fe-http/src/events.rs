//! Event streams: once a second the figures of the pool and of some objects, and the jobs and the
//! health that changed. Owns the counts of streams.
//!
//! A client that reconnects with `Last-Event-ID` gets the figures that it missed, if the server still
//! has them, or else a `reset`, which means that it has to read everything again.
//!
//! A stream asks the server each second with the credentials of its request, so it ends when the
//! token is revoked or the session ends. A slow client gets fewer frames, not older ones.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, State};
use axum::http::{HeaderMap, Uri};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};

use crate::api::pairs_of;
use crate::backend::Backend;
use crate::connections::Peer;
use crate::problem;
use crate::router::Shared;
use crate::session;
use crate::wire::{Answer, Ask, Proof, What};

/// Streams in all, and those of one session or token: a browser opens one.
const STREAMS_MAX: usize = 64;
const STREAMS_OF_PROOF_MAX: usize = 4;
const FRAME_EVERY: Duration = Duration::from_secs(1);
/// Objects whose figures a stream has.
const OBJECTS_MAX: usize = 200;

/// Counts of streams, by credentials.
#[derive(Default)]
pub(crate) struct Streams {
    counts: Mutex<BTreeMap<String, usize>>,
}

struct Counted {
    streams: Arc<Streams>,
    key: String,
}

impl Streams {
    fn admit(self: &Arc<Self>, proof: &Proof) -> Option<Counted> {
        let key = match proof {
            Proof::None => String::new(),
            Proof::Session(text) | Proof::Token(text) => text.clone(),
            Proof::Peer { uid, .. } => format!("uid {uid}"),
        };
        let mut counts = self.counts.lock();
        let all: usize = counts.values().sum();
        let own = counts.get(&key).copied().unwrap_or_default();
        if all >= STREAMS_MAX || own >= STREAMS_OF_PROOF_MAX {
            return None;
        }
        counts.insert(key.clone(), own + 1);
        Some(Counted { streams: Arc::clone(self), key })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.streams.counts.lock();
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

/// Topics and objects of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wish {
    topics: Vec<String>,
    objects: Vec<u64>,
}

const TOPICS: [&str; 4] = ["figures", "jobs", "health", "objects"];

fn wish_of(uri: &Uri) -> Result<Wish, String> {
    let mut wish = Wish { topics: TOPICS.map(str::to_owned).to_vec(), objects: Vec::new() };
    for (name, value) in pairs_of(uri.query().unwrap_or_default()).ok_or("the query is not UTF-8")? {
        match name.as_str() {
            "topics" => wish.topics = value.split(',').map(str::to_owned).collect(),
            "objects" => {
                let ids = value.split(',').filter(|id| !id.is_empty()).map(str::parse).collect::<Result<Vec<_>, _>>();
                wish.objects = ids.map_err(|_| "'objects' are numbers, with commas between them")?;
            }
            other => return Err(format!("'events' has no parameter '{other}': there are topics, objects")),
        }
    }
    if let Some(unknown) = wish.topics.iter().find(|topic| !TOPICS.contains(&topic.as_str())) {
        return Err(format!("there is no topic '{unknown}': there are {}", TOPICS.join(", ")));
    }
    if wish.objects.len() > OBJECTS_MAX {
        return Err(format!("a stream has figures of at most {OBJECTS_MAX} objects"));
    }
    Ok(wish)
}

/// State that a stream has sent already.
#[derive(Default)]
struct Sent {
    jobs: BTreeMap<u64, Value>,
    health: Value,
    generation: Option<Value>,
}

impl Sent {
    /// The events that a client missed, the last one first. Jobs and health come in full with the
    /// next frames.
    fn resume(&mut self, wish: &Wish, frames: &Value) -> Vec<Event> {
        let Some(missed) = frames["missed"].as_array() else {
            return vec![Event::default().event("reset").data("{}")];
        };
        self.generation = Some(frames["generation_then"].clone());
        let wants_figures = wish.topics.iter().any(|wanted| wanted == "figures");
        let figures = missed.iter().filter(|_| wants_figures);
        let event = |figures: &Value| Event::default().event("figures").id(id_of(figures)).data(figures.to_string());
        figures.rev().map(event).collect()
    }

    /// The events of a second.
    fn events(&mut self, wish: &Wish, frames: &Value) -> Vec<(&'static str, Value)> {
        let wants = |topic: &str| wish.topics.iter().any(|wanted| wanted == topic);
        let mut events = Vec::new();
        let generation = frames["generation"].clone();
        if self.generation.replace(generation.clone()).is_some_and(|before| before != generation) && wants("objects") {
            events.push(("reset", json!({ "generation": generation })));
        }
        if wants("figures") {
            events.push(("figures", frames["figures"].clone()));
        }
        let jobs = frames["jobs"].as_array().map_or(&[][..], Vec::as_slice);
        let changed: Vec<_> = jobs
            .iter()
            .filter(|job| {
                job["id"].as_u64().is_some_and(|id| self.jobs.insert(id, (*job).clone()).as_ref() != Some(*job))
            })
            .cloned()
            .collect();
        self.jobs.retain(|id, _| jobs.iter().any(|job| job["id"] == *id));
        if wants("jobs") && !changed.is_empty() {
            events.push(("jobs", json!({ "jobs": changed })));
        }
        if wants("health") && self.health != frames["health"] {
            self.health = frames["health"].clone();
            events.push(("health", self.health.clone()));
        }
        events
    }
}

/// `GET /events`.
pub(crate) async fn events(
    State(shared): State<Shared>,
    Extension(peer): Extension<Peer>,
    uri: Uri,
    fields: HeaderMap,
) -> Response {
    let proof = session::proof(&fields, &peer);
    let wish = match wish_of(&uri) {
        Ok(wish) => wish,
        Err(text) => return problem::malformed(&text),
    };
    let last = fields.get("last-event-id").map(|id| id.to_str().unwrap_or_default());
    let since = last.and_then(|id| second_of(id, &shared.boot));
    let what = What::Tick { objects: wish.objects.clone(), since };
    let ask = Ask { from: peer.from(), proof, what };
    // The first frame comes before the response, so that a refusal has its status.
    let first = match shared.ticks.ask(ask.clone()).await {
        Ok(Answer::Document { document, .. }) => document,
        Ok(Answer::Fault(fault)) => return problem::of(&fault),
        Ok(_) => return problem::no_answer(crate::backend::NoAnswer::Gone),
        Err(why) => return problem::no_answer(why),
    };
    let Some(counted) = shared.streams.admit(&ask.proof) else {
        return problem::too_many_streams();
    };
    let ask = Ask { what: What::Tick { objects: wish.objects.clone(), since: None }, ..ask };
    let mut sent = Sent::default();
    let waiting = last.map_or_else(Vec::new, |_| sent.resume(&wish, &first));
    Sse::new(follow(shared.ticks.clone(), ask, wish, first, counted, (sent, waiting))).into_response()
}

/// The second of an event of this start of the server.
fn second_of(id: &str, boot: &str) -> Option<u64> {
    let (of, second) = id.rsplit_once('-')?;
    (of == boot).then(|| second.parse().ok())?
}

/// Identifier of the events of a second.
fn id_of(figures: &Value) -> String {
    format!("{}-{}", figures["boot"].as_str().unwrap_or_default(), figures["unix_s"])
}

fn follow(
    backend: Backend,
    ask: Ask,
    wish: Wish,
    first: Value,
    counted: Counted,
    (sent, waiting): (Sent, Vec<Event>),
) -> impl Stream<Item = Result<Event, Infallible>> + Send {
    let mut clock = interval(FRAME_EVERY);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let state = (backend, ask, wish, Some(first), sent, clock, waiting, counted);
    stream::unfold(state, |(backend, ask, wish, mut next, mut sent, mut clock, mut waiting, counted)| async move {
        while waiting.is_empty() {
            clock.tick().await;
            let frames = match next.take() {
                Some(first) => first,
                None => match backend.ask(ask.clone()).await {
                    Ok(Answer::Document { document, .. }) => document,
                    // The credentials expired, or the server ended.
                    _ => return None,
                },
            };
            let id = id_of(&frames["figures"]);
            let events = sent.events(&wish, &frames).into_iter();
            waiting = events.map(|(name, data)| Event::default().event(name).id(&id).data(data.to_string())).collect();
            if waiting.is_empty() {
                waiting.push(Event::default().comment("nothing new"));
            }
            waiting.reverse();
        }
        let event = waiting.pop()?;
        Some((Ok(event), (backend, ask, wish, next, sent, clock, waiting, counted)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changed_is_sent_again() {
        let wish = wish_of(&"/events?objects=1,2".parse().unwrap()).unwrap();
        let mut sent = Sent::default();
        let frames = |state: &str, health: &str, generation: u64| {
            json!({"figures": {"boot": "b"}, "jobs": [{"id": 1, "state": state}, {"id": 2, "state": "done"}],
                   "health": {"health": health}, "generation": generation})
        };
        let names = |events: Vec<(&'static str, Value)>| events.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        assert_eq!(names(sent.events(&wish, &frames("running", "ok", 1))), ["figures", "jobs", "health"]);
        assert_eq!(names(sent.events(&wish, &frames("running", "ok", 1))), ["figures"]);
        let next = sent.events(&wish, &frames("done", "full", 2));
        assert_eq!(next[2].1["jobs"], json!([{"id": 1, "state": "done"}]));
        assert_eq!(names(next), ["reset", "figures", "jobs", "health"]);
        let quiet = Wish { topics: vec!["health".to_owned()], objects: Vec::new() };
        assert_eq!(names(sent.events(&quiet, &frames("x", "full", 3))), Vec::<&str>::new());
    }

    #[test]
    fn a_client_that_comes_again_gets_what_it_has_missed_or_reads_everything_again() {
        assert_eq!(second_of("5e1f-17", "5e1f"), Some(17));
        for foreign in ["5e1f-17", "17", "", "-", "other-17", "boot-x", "boot--1"] {
            assert_eq!(second_of(foreign, "boot"), None, "{foreign}");
        }
        let wish = wish_of(&"/events".parse().unwrap()).unwrap();
        let figures = |second: u64| json!({"boot": "b", "unix_s": second});
        let frames = |generation: u64| json!({"figures": figures(9), "missed": [figures(7), figures(8)], "generation_then": 4, "generation": generation});
        for (generation, names) in [(4, vec!["figures"]), (5, vec!["reset", "figures"])] {
            let mut sent = Sent::default();
            assert_eq!(sent.resume(&wish, &frames(generation)).len(), 2, "a frame for each second");
            let events = sent.events(&wish, &frames(generation)).into_iter().map(|(name, _)| name);
            assert_eq!(events.collect::<Vec<_>>(), names, "changes meanwhile are told");
        }
        let mut sent = Sent::default();
        assert_eq!(sent.resume(&wish, &json!({"figures": figures(9), "missed": null})).len(), 1, "a reset");
        assert!(sent.generation.is_none());
    }

    #[test]
    fn a_wish_that_cannot_be_is_refused() {
        let wish = wish_of(&"/events?topics=jobs,health&objects=".parse().unwrap()).unwrap();
        assert_eq!(wish, Wish { topics: vec!["jobs".to_owned(), "health".to_owned()], objects: Vec::new() });
        let many = format!("/events?objects={}", vec!["1"; 201].join(","));
        for bad in ["/events?topics=x", "/events?objects=a", "/events?x=1", "/events?objects=%ff", &many] {
            assert!(wish_of(&bad.parse().unwrap()).is_err(), "{bad}");
        }
    }

    #[test]
    fn streams_are_bounded_in_all_and_by_session() {
        let streams = Arc::new(Streams::default());
        let admit = |number: usize| streams.admit(&Proof::Session(number.to_string()));
        let own: Vec<_> = (0..9).filter_map(|_| admit(1)).collect();
        assert_eq!(own.len(), STREAMS_OF_PROOF_MAX);
        let all: Vec<_> = (2..200).filter_map(admit).collect();
        assert_eq!(all.len() + own.len(), STREAMS_MAX);
        drop((own, all));
        assert!(streams.counts.lock().is_empty() && admit(1).is_some());
    }
}
