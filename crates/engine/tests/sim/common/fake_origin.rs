//! A store of images that fails, lies and is away, as a test wants it.

use std::collections::BTreeMap;
use std::fmt::{Debug, Formatter};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use codec::{Codec, Workspace};
use env::{Clock, OriginError, Origins, RemoteGroup, RemoteImage, Wait};
use sim::{ContentKind, Rng, SimClock, fill_content};

const GROUP: usize = 128 << 10;

/// How it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    Well,
    Away,
    Denies,
    Gone,
    /// So many answers do not match their checksums.
    Lies(u32),
    /// One request in so many fails, in one way or another.
    Moody(u64),
    /// Each request takes so many milliseconds, and then fails.
    Hangs(u64),
}

/// Something to be done while a request hangs.
struct Meanwhile(Box<dyn FnOnce() + Send>);

impl Debug for Meanwhile {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meanwhile").finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct State {
    mood: Mood,
    rng: Rng,
    asked: BTreeMap<u64, u32>,
    clock: Option<Arc<SimClock>>,
    meanwhile: Option<Meanwhile>,
}

/// One image.
#[derive(Debug)]
pub struct FakeOrigin {
    pub image: RemoteImage,
    pub content: Vec<u8>,
    state: Mutex<State>,
}

impl FakeOrigin {
    /// An image of so many bytes, a third of whose groups are zeroes.
    pub fn new(seed: u64, len: usize) -> Arc<Self> {
        let mut rng = Rng::new(seed);
        let mut content = vec![0; len];
        for group in content.chunks_mut(GROUP) {
            if !rng.percent(33) {
                let kind = ContentKind::choose(&mut rng);
                group.chunks_mut(4096).for_each(|block| fill_content(&mut rng, kind, block));
            }
        }
        let image = RemoteImage {
            location: "s3://bucket/image".to_owned(),
            incarnation: u128::from(seed),
            version: 7,
            len: len as u64,
        };
        let state = Mutex::new(State { mood: Mood::Well, rng, asked: BTreeMap::new(), clock: None, meanwhile: None });
        Arc::new(Self { image, content, state })
    }

    pub fn set(&self, mood: Mood) {
        self.state.lock().unwrap().mood = mood;
    }

    /// From now on each request takes so long on this clock, and fails then.
    pub fn hang(&self, clock: &Arc<SimClock>, ms: u64) {
        let mut state = self.state.lock().unwrap();
        (state.mood, state.clock) = (Mood::Hangs(ms), Some(clock.clone()));
    }

    /// Has something done once, after the first request that hangs was asked for.
    pub fn meanwhile(&self, work: impl FnOnce() + Send + 'static) {
        self.state.lock().unwrap().meanwhile = Some(Meanwhile(Box::new(work)));
    }

    /// Lets time pass until a request that hangs has failed.
    fn hung(&self, ms: u64, wait: &Wait<'_>) -> Option<OriginError> {
        let clock = self.state.lock().unwrap().clock.clone()?;
        let (began, takes) = (clock.now_ns(), Duration::from_millis(ms));
        let passed = || Duration::from_nanos(clock.now_ns() - began);
        let meanwhile = self.state.lock().unwrap().meanwhile.take();
        if let Some(Meanwhile(work)) = meanwhile {
            work();
        }
        while passed() < takes {
            if passed() >= wait.within {
                return Some(OriginError::Unreachable("no answer in time".to_owned()));
            }
            if (wait.is_over)() {
                return Some(OriginError::Unreachable("the request was given up".to_owned()));
            }
            clock.advance_ms(100);
        }
        Some(OriginError::Unreachable("connection refused".to_owned()))
    }

    /// How often each group was had.
    pub fn asked(&self) -> BTreeMap<u64, u32> {
        self.state.lock().unwrap().asked.clone()
    }

    pub fn asked_total(&self) -> u32 {
        self.asked().values().sum()
    }

    fn group(&self, group: u64) -> RemoteGroup {
        let start = group as usize * GROUP;
        let raw = &self.content[start..self.content.len().min(start + GROUP)];
        if raw.iter().all(|byte| *byte == 0) {
            return RemoteGroup::Zero;
        }
        if group % 3 == 2 {
            return RemoteGroup::Plain(raw.to_vec());
        }
        let mut target = vec![0; raw.len()];
        let packed = if group % 3 == 1 { Workspace::new().compress(Codec::Lz4, raw, &mut target) } else { None };
        let (codec, bytes) = match packed {
            Some(len) => (Codec::Lz4.id(), target[..len].to_vec()),
            None => (codec::CodecId::RAW, raw.to_vec()),
        };
        let checksum = format::crc32c(&bytes);
        RemoteGroup::Stored { codec: codec.0, data_len: raw.len() as u32, bytes, checksum }
    }
}

impl Origins for FakeOrigin {
    fn fetch(&self, image: &RemoteImage, groups: &[u64], wait: &Wait<'_>) -> Vec<Result<RemoteGroup, OriginError>> {
        assert_eq!(*image, self.image);
        let mood = self.state.lock().unwrap().mood;
        if let Mood::Hangs(ms) = mood
            && let Some(error) = self.hung(ms, wait)
        {
            return groups.iter().map(|_| Err(error.clone())).collect();
        }
        let mut state = self.state.lock().unwrap();
        let mut answers = Vec::new();
        for group in groups {
            let general = state.mood;
            let mood = match general {
                Mood::Moody(one_in) if state.rng.below(one_in) == 0 => {
                    *state.rng.pick(&[Mood::Away, Mood::Denies, Mood::Lies(1)])
                }
                Mood::Moody(_) => Mood::Well,
                mood => mood,
            };
            let answer = match mood {
                Mood::Away => Err(OriginError::Unreachable("no route to the store".to_owned())),
                Mood::Denies => Err(OriginError::Denied("403".to_owned())),
                Mood::Gone => Err(OriginError::Gone("404".to_owned())),
                _ => Ok(self.group(*group)),
            };
            let answer = match (mood, answer) {
                (Mood::Lies(left), Ok(RemoteGroup::Stored { codec, data_len, mut bytes, checksum })) if left > 0 => {
                    bytes[0] ^= 1;
                    if let Mood::Lies(left) = &mut state.mood {
                        *left -= 1;
                    }
                    Ok(RemoteGroup::Stored { codec, data_len, bytes, checksum })
                }
                (_, answer) => answer,
            };
            if answer.is_ok() {
                *state.asked.entry(*group).or_default() += 1;
            }
            answers.push(answer);
        }
        answers
    }
}
