import './app.css'
import { mount } from 'svelte'
import App from './App.svelte'

const target = document.getElementById('page')
if (target) mount(App, { target })

// A page that the browser kept while another one was shown has ended its event stream.
window.addEventListener('pageshow', (event) => event.persisted && location.reload())
